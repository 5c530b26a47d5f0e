//! The external tests of `ripieno-sim`, in one binary, since each further binary is built and
//! linked separately.

mod admission;
mod autoscale;
mod baselines;
mod bursts;
mod cell_orders;
mod cellular_examples;
mod cellular_readings;
mod chains;
mod common;
mod contract;
mod control_events;
mod dvabatch_examples;
mod dvabatch_loads;
mod ensembles;
mod fairness;
mod graph_batching;
mod idle;
mod lazy_examples;
mod lost_devices;
#[path = "../../examples/meta_operations.rs"]
mod meta_operations;
mod meta_operations_run;
mod mixes;
mod network;
mod no_slo;
mod objective;
mod overload;
mod profiles;
mod recorded;
mod scenario;
mod second_readings;
mod served_bounds;
mod symphony_example;
mod table2;
mod unfolding;
mod unified;
mod walk_scenarios;
mod wide_requests;
mod work_conserving;
