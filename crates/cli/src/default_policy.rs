//! The policy of a server whose user names none, and the line of the log about it.

use crate::policy::named;
use ripieno_repository::ModelWalk;
use ripieno_sched::{Choice, ModelKind, Objective, Options, choose};
use std::path::Path;

/// A policy that suits some models, and the reason for it.
pub(crate) struct DefaultPolicy {
    pub(crate) policy: &'static str,
    pub(crate) options: Options,
    pub(crate) reason: String,
}

impl DefaultPolicy {
    /// Returns the policy that suits the models of a repository.
    pub(crate) fn of_repository(repository: &Path, objective: Objective) -> DefaultPolicy {
        let models = ripieno_repository::walks(repository);
        let kinds: Vec<_> =
            models.into_iter().map(|ModelWalk { model, walk, pads }| ModelKind { model, walk, pads }).collect();
        DefaultPolicy::of_models(&kinds, objective)
    }

    /// Returns the policy that suits these models.
    pub(crate) fn of_models(models: &[ModelKind], objective: Objective) -> DefaultPolicy {
        let Choice { policy, options, because } = choose(models, objective);
        let reason = match models.iter().find(|kind| because.as_ref() == Some(&kind.model)) {
            Some(ModelKind { model, walk, .. }) if walk.is_unfolded() => {
                format!("for all models, because model {model} has walk = \"{}\"", walk.name())
            }
            Some(ModelKind { model, .. }) => format!(
                "for all models, because the requests of model {model} are padded (length_dim): it batches those of like \
                 length together"
            ),
            None => "because no model is in cells and no requests are padded".to_owned(),
        };
        DefaultPolicy { policy, options, reason }
    }
}

/// Logs a server's policy with the options that are set, and the reason for it.
pub(crate) fn log_policy(policy: &str, options: &Options, reason: &str) {
    tracing::info!("{}", policy_line(policy, options, reason));
}

fn policy_line(policy: &str, options: &Options, reason: &str) -> String {
    format!("the policy is {}, {reason}", named(policy, options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::Walk;

    #[test]
    fn the_log_names_the_policy_its_options_and_the_model_that_decided() {
        let kind = |model: &str, walk, pads| ModelKind { model: model.to_owned(), walk, pads };
        let (whole, padded) = (kind("resnet", Walk::Whole, false), kind("bert", Walk::Whole, true));
        let cells = kind("lstm", Walk::Repeat, false);
        let line = |models: &[ModelKind]| {
            let DefaultPolicy { policy, options, reason } = DefaultPolicy::of_models(models, Objective::Latency);
            policy_line(policy, &options, &reason)
        };
        assert_eq!(
            line(std::slice::from_ref(&whole)),
            "the policy is deferred objective=latency, because no model is in cells and no requests are padded"
        );
        assert!(
            line(&[whole.clone(), padded.clone()]).contains("unified objective=latency, for all models, because the")
        );
        assert!(line(&[whole, padded, cells]).ends_with("because model lstm has walk = \"repeat\""));
    }
}
