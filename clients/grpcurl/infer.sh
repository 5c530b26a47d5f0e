#!/bin/sh
# The drawing of a zero to the demo model `digits`, by grpcurl; the server tells it the messages by
# reflection:
#
#     ripieno serve models/repository &
#     clients/grpcurl/infer.sh localhost:8001
#
# The logits come as base64 of little-endian floats. `-max-time` is the deadline, in seconds.
set -eu
grpcurl -plaintext -max-time 5 -d '{
  "model_name": "digits",
  "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "contents": {"fp32_contents": [
    0, 0, 0.3, 0.9, 0.6, 0.1, 0, 0,    0, 0, 0.8, 0.9, 0.6, 0.9, 0.3, 0,  0, 0.2, 0.9, 0.1, 0, 0.7, 0.5, 0,
    0, 0.3, 0.8, 0, 0, 0.5, 0.5, 0,    0, 0.3, 0.5, 0, 0, 0.6, 0.5, 0,    0, 0.3, 0.7, 0, 0.1, 0.8, 0.4, 0,
    0, 0.1, 0.9, 0.3, 0.6, 0.8, 0, 0,  0, 0, 0.4, 0.8, 0.6, 0, 0, 0]}}]
}' "${1:-localhost:8001}" inference.GRPCInferenceService/ModelInfer
