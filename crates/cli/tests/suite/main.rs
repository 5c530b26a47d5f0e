//! The tests of the program from outside, in one binary, since each further binary is built and
//! linked separately.

mod alerts;
mod bad_scenarios;
mod bench_tls;
mod cli_page;
mod cluster;
mod cluster_demo;
mod cluster_links;
mod compare_policies;
mod download;
mod image;
mod links;
mod live;
mod models_tries;
mod nothing_to_serve;
mod processes;
mod promql;
mod recording;
mod recordings;
mod reproduce_live;
mod serve_shards;
mod slice;
mod why;
