#!/bin/sh
# The drawing of a zero to the demo model `digits`, by curl, in JSON:
#
#     ripieno serve models/repository &
#     clients/curl/infer.sh localhost:8000
#
# The answer is the model's ten logits; the largest is that of the digit. `timeout` is the deadline
# in microseconds.
set -eu
curl --silent --show-error --fail-with-body "http://${1:-localhost:8000}/v2/models/digits/infer" --data '{
  "parameters": {"timeout": 5000000},
  "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [
    0, 0, 0.3, 0.9, 0.6, 0.1, 0, 0,    0, 0, 0.8, 0.9, 0.6, 0.9, 0.3, 0,  0, 0.2, 0.9, 0.1, 0, 0.7, 0.5, 0,
    0, 0.3, 0.8, 0, 0, 0.5, 0.5, 0,    0, 0.3, 0.5, 0, 0, 0.6, 0.5, 0,    0, 0.3, 0.7, 0, 0.1, 0.8, 0.4, 0,
    0, 0.1, 0.9, 0.3, 0.6, 0.8, 0, 0,  0, 0, 0.4, 0.8, 0.6, 0, 0, 0]}]
}'
