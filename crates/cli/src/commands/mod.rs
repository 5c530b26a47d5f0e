//! The commands, one file or folder each.

pub(crate) mod bench;
pub(crate) mod cluster_demo;
pub(crate) mod compare;
#[cfg_attr(not(feature = "reproduce"), path = "not_built/compare_policies.rs")]
pub(crate) mod compare_policies;
pub(crate) mod control;
pub(crate) mod corpus;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod documents;
pub(crate) mod flight;
pub(crate) mod goodput;
pub(crate) mod health;
pub(crate) mod migrate;
pub(crate) mod models;
pub(crate) mod new;
pub(crate) mod plan;
pub(crate) mod policies;
pub(crate) mod recording;
pub(crate) mod replay;
#[cfg_attr(not(feature = "reproduce"), path = "not_built/reproduce.rs")]
pub(crate) mod reproduce;
pub(crate) mod roles;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod slice;
pub(crate) mod try_command;
pub(crate) mod what_if;
pub(crate) mod why;
