//! HTTP and gRPC front end, model repository, metrics.
