//! What is proved about a model before its first request: that its bytes are those of weights (level 1), that its ranks' parts are the
//! whole (level 4), and that a text makes sense to it (level 7). A model that fails is not served.

use clap::ValueEnum;
use glim_engine::Engine;
use glim_engine::proof::{Check, Outcome, SENSE_TEXTS, sense};
use glim_model::{Checkpoint, proof};
use glim_server::Lifecycle;
use glim_text::{Special, Tokenizer};

use crate::exit::{Exit, Failure};

/// How much is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Extent {
    // (Doc comments would turn `--help` into its long form.)
    None,
    File,
    Full,
}

/// Levels 1 and 4; gives the digest of the file's tensors.
pub(super) fn of_bytes(
    checkpoint: &Checkpoint,
    world_size: usize,
    lifecycle: &Lifecycle,
) -> Result<String, Failure> {
    lifecycle.loading("proof of the file");
    let found = proof::file(checkpoint, &|bytes| lifecycle.worked(bytes));
    judge(&found.checks)?;
    tracing::info!(
        bytes = proof::file_bytes(checkpoint),
        digest = %found.digest,
        "the file is proved"
    );
    if world_size > 1 {
        lifecycle.loading("proof of the ranks");
        judge(&proof::shards(checkpoint, &[world_size], &|bytes| {
            lifecycle.worked(bytes)
        }))?;
    }
    Ok(found.digest.to_string())
}

/// Level 7.
pub(super) fn of_sense(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    lifecycle: &Lifecycle,
) -> Result<(), Failure> {
    lifecycle.loading("proof of sense");
    let mut needed = 0;
    for text in SENSE_TEXTS {
        let tokens = tokenizer.encode(text.text, Special::Text)?;
        needed = needed.max(tokens.len() + 1);
    }
    if needed > engine.context() {
        tracing::warn!(
            context = engine.context(),
            needed,
            "the context is too short for the proof of sense, which is left out"
        );
        return Ok(());
    }
    let check = sense(engine, tokenizer, &mut |_, _| lifecycle.worked(1));
    tracing::info!(detail = check.detail, "the model reads a text");
    judge(std::slice::from_ref(&check)).map_err(|failure| {
        failure.hint(
            "the weights may be in the wrong places: glim verify says more; --verify file serves the model all the same",
        )
    })
}

/// The first check that failed.
fn judge(checks: &[Check]) -> Result<(), Failure> {
    let failed = checks.iter().find(|check| check.outcome == Outcome::Failed);
    match failed {
        None => Ok(()),
        Some(check) => Err(Failure::new(
            Exit::BadData,
            format!(
                "the model does not pass level {} of its proof, {}: {}",
                check.level.number(),
                check.name,
                check.detail
            ),
        )
        .hint("glim verify says more; --verify none serves it unproved")),
    }
}
