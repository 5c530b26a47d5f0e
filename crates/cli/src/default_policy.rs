//! The policy of a server whose user names none.

use ripieno_repository::ModelWalk;
use ripieno_sched::{Choice, ModelKind, choose};
use std::path::Path;

/// Returns the policy that suits the models of a repository.
pub(crate) fn default_policy(repository: &Path, objective: ripieno_sched::Objective) -> Choice {
    let models = ripieno_repository::walks(repository);
    let kinds: Vec<_> =
        models.into_iter().map(|ModelWalk { model, walk, pads }| ModelKind { model, walk, pads }).collect();
    let choice = choose(&kinds, objective);
    let decided = kinds.iter().find(|kind| choice.because.as_ref() == Some(&kind.model));
    match decided {
        Some(ModelKind { model, walk, .. }) if walk.is_unfolded() => {
            tracing::info!(
                "the policy is {} for all models, because model {model} has walk = \"{}\"",
                choice.policy,
                walk.name()
            );
        }
        Some(ModelKind { model, .. }) => tracing::info!(
            "the policy is {} for all models, because the requests of model {model} are padded (length_dim): it batches \
             those of like length together",
            choice.policy
        ),
        None => {}
    }
    choice
}
