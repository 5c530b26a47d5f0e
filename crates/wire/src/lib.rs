//! Protocol types of the Open Inference Protocol: protobuf, JSON, binary tensors.
