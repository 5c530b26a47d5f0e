//! The errors of the planner.

use thiserror::Error;

/// The reason why there is no plan. Every message says what to change.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum PlanError {
    /// Nothing to place.
    #[error("there is no model to place; add at least one")]
    NoModels,
    /// More models than a plan may have.
    #[error("{given} models are too many to plan together; the most is {most}")]
    TooManyModels {
        /// The models given.
        given: usize,
        /// The most allowed.
        most: usize,
    },
    /// There is no sub-cluster.
    #[error("sub_clusters = 0; there must be at least 1")]
    NoSubClusters,
    /// Some sub-clusters would stay empty.
    #[error("sub_clusters = {sub_clusters}, but there are {models} models; give at most one sub-cluster a model")]
    TooManySubClusters {
        /// The sub-clusters asked for.
        sub_clusters: usize,
        /// The models given.
        models: usize,
    },
    /// Two models have the same name.
    #[error("the model name {name:?} is used twice; names tell models apart, so change one")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// A number of a model is negative, infinite or not a number.
    #[error("model {model:?}: {key} = {value}; it must be a number of at least 0")]
    BadNumber {
        /// The model.
        model: String,
        /// The key of the number.
        key: &'static str,
        /// The number.
        value: f64,
    },
    /// A number of the whole problem is negative, infinite or not a number.
    #[error("{key} = {value}; it must be a number of at least 0")]
    BadLimit {
        /// The key of the number.
        key: &'static str,
        /// The number.
        value: f64,
    },
    /// The numbers of all models add up to more than the planner counts.
    #[error("the {key} of all models adds up to {total:e}; more than {most:e} cannot be planned, so use a larger unit")]
    TooLarge {
        /// The key of the numbers.
        key: &'static str,
        /// Their sum.
        total: f64,
        /// The largest allowed sum.
        most: f64,
    },
    /// Load costs were given for another number of sub-clusters.
    #[error("model {model:?} has load costs for {given} sub-clusters, but there are {sub_clusters}")]
    LoadCosts {
        /// The model.
        model: String,
        /// The costs given.
        given: usize,
        /// The sub-clusters.
        sub_clusters: usize,
    },
    /// The current partition is for other models.
    #[error("the current partition names {given} models, but there are {models}; give one place, or none, for each")]
    CurrentLength {
        /// The places given.
        given: usize,
        /// The models.
        models: usize,
    },
    /// The current partition has more sub-clusters.
    #[error(
        "model {model:?} is now in sub-cluster {sub_cluster}, but the plan has only {sub_clusters} (0 is the first); \
         plan for more, or drop the model's current place"
    )]
    CurrentPlace {
        /// The model.
        model: String,
        /// Sub-cluster of the model in the current partition.
        sub_cluster: usize,
        /// The sub-clusters.
        sub_clusters: usize,
    },
    /// A model does not fit any device.
    #[error(
        "model {model:?} alone needs {needed} MB ({key}), but a device has {limit} MB; use larger devices, or serve \
         the model elsewhere"
    )]
    ModelTooLarge {
        /// The model.
        model: String,
        /// The keys that were added.
        key: &'static str,
        /// The memory that it needs, in MB.
        needed: f64,
        /// The memory of a device, in MB.
        limit: f64,
    },
    /// A model alone exceeds the rate bound.
    #[error("model {model:?} alone has {rate} requests/s, but max_rate = {limit}; raise it, or split the model's load")]
    ModelTooBusy {
        /// The model.
        model: String,
        /// Rate of the model.
        rate: f64,
        /// The bound.
        limit: f64,
    },
    /// All sub-clusters together are too small, whatever the partition.
    #[error(
        "{sub_clusters} sub-clusters hold at most {room} {unit}, but the models need {needed}; plan for at least \
         {at_least} sub-clusters, or raise {key}"
    )]
    TooSmall {
        /// The bound that cannot be kept.
        key: &'static str,
        /// Unit of the value.
        unit: &'static str,
        /// The sub-clusters.
        sub_clusters: usize,
        /// The capacity of all sub-clusters.
        room: f64,
        /// The total need of all models.
        needed: f64,
        /// The smallest number of sub-clusters that could be enough.
        at_least: usize,
    },
    /// Loading the new models costs more than the bound.
    #[error("max_disruption = {limit}, but loading the new models alone costs at least {needed}; raise it")]
    DisruptionTooSmall {
        /// The bound.
        limit: u64,
        /// The smallest possible cost.
        needed: u64,
    },
    /// The search found no partition that keeps the bounds. There may be one: the search is a
    /// heuristic.
    #[error(
        "no partition into {sub_clusters} sub-clusters was found that keeps {broken}; plan for more sub-clusters, or \
         raise that bound"
    )]
    NotFound {
        /// The sub-clusters.
        sub_clusters: usize,
        /// The bounds that the best partition found violates.
        broken: String,
    },
}
