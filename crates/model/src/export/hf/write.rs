//! Carrying a plan for a Hugging Face folder out.

use std::borrow::Cow;
use std::path::Path;

use glim_quant::GgmlType;
use serde_json::{Map, Value as Json, json};

use super::folder::NewFolder;
use super::{HfExport, HfPlan, MadeOf, shards};
use crate::checkpoint::{Checkpoint, TensorDesc, kv_b_dims};
use crate::error::ModelError;
use crate::export::ExportError;
use crate::export::recode::{self, Failure, Place, Progress, Recoder};
use crate::kv_b::join_kv_b;

const INDEX: &str = "model.safetensors.index.json";

/// Writes the folder `target`, which must not exist or be empty, with `files` (names and contents, such as a tokenizer's)
/// beside the model's own. `progress` is called with the bytes of a piece of tensor data when it has been written; they
/// add up to [`HfPlan::data_bytes`]. It may end the job.
///
/// # Errors
/// The target is occupied, the checkpoint cannot be read, a type cannot store its weights, a file cannot be written, or
/// `progress` ended it. No folder is left behind then.
pub fn write(
    checkpoint: &Checkpoint,
    plan: &HfPlan<'_>,
    files: &[(&str, String)],
    target: &Path,
    progress: &mut Progress<'_>,
) -> Result<(), ExportError> {
    let folder = NewFolder::create(target)?;
    let text = |name: &str, content: &str| {
        folder.file(name, |out| {
            let written = out.write_all(content.as_bytes());
            written.map_err(Failure::Io)
        })
    };
    text("config.json", &format!("{:#}\n", plan.config))?;
    text(
        "generation_config.json",
        &format!("{:#}\n", plan.generation),
    )?;
    for (name, content) in files {
        text(name, content)?;
    }
    if plan.shards.len() > 1 {
        text(INDEX, &format!("{:#}\n", index(plan)))?;
    }
    let origin = checkpoint.source().name();
    let mut recoder = Recoder::new();
    for (i, range) in plan.shards.iter().enumerate() {
        let name = shards::file_name(i, plan.shards.len());
        let tensors = shards::ordered(&plan.tensors[range.clone()]);
        folder.file(&name, |out| {
            out.write_all(&shards::header(&tensors))
                .map_err(Failure::Io)?;
            for tensor in &tensors {
                let place = Place {
                    origin: &origin,
                    tensor: &tensor.name,
                };
                let mut put = |bytes: &[u8]| recode::put(out, bytes, progress);
                convert(checkpoint, tensor, place, &mut recoder, &mut put)?;
            }
            Ok(())
        })?;
    }
    folder.publish()
}

/// Which file holds which tensor.
fn index(plan: &HfPlan<'_>) -> Json {
    let mut files = Map::new();
    for (i, range) in plan.shards.iter().enumerate() {
        let file = shards::file_name(i, plan.shards.len());
        for tensor in &plan.tensors[range.clone()] {
            files.insert(tensor.name.clone(), json!(file));
        }
    }
    json!({"metadata": {"total_size": plan.data_bytes()}, "weight_map": files})
}

fn convert(
    checkpoint: &Checkpoint,
    tensor: &HfExport<'_>,
    place: Place<'_>,
    recoder: &mut Recoder,
    put: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let to = tensor.float.ggml_type();
    let unreadable = |error: ModelError| Failure::Export(error.into());
    match tensor.from {
        MadeOf::Whole(desc) => {
            let pieces = checkpoint.pieces(desc).map_err(unreadable)?;
            recoder.run(pieces, (desc.ty, to), place, put)
        }
        MadeOf::Expert(desc, expert) => {
            let piece = checkpoint.item(desc, expert).map_err(unreadable)?;
            recoder.run(std::iter::once(piece), (desc.ty, to), place, put)
        }
        MadeOf::KvB(keys, values) => {
            let keys = whole(checkpoint, keys, to, place, recoder)?;
            let values = whole(checkpoint, values, to, place, recoder)?;
            let dims = kv_b_dims(checkpoint.config());
            let joined = join_kv_b(&keys, &values, dims, to.block_bytes()).map_err(|error| {
                unreadable(ModelError::Malformed {
                    path: place.origin.into(),
                    reason: format!("tensor `{}`: {error}", place.tensor),
                })
            })?;
            put(&joined)
        }
    }
}

/// All bytes of a tensor in another type.
fn whole<'c>(
    checkpoint: &'c Checkpoint,
    desc: &'c TensorDesc,
    to: GgmlType,
    place: Place<'_>,
    recoder: &mut Recoder,
) -> Result<Cow<'c, [u8]>, Failure> {
    let data = checkpoint
        .data(desc)
        .map_err(|error| Failure::Export(error.into()))?;
    if desc.ty == to {
        return Ok(data);
    }
    let mut bytes = Vec::with_capacity(desc.elements() * to.block_bytes());
    let mut collect = |part: &[u8]| {
        bytes.extend_from_slice(part);
        Ok(())
    };
    recoder.run(std::iter::once(data), (desc.ty, to), place, &mut collect)?;
    Ok(Cow::Owned(bytes))
}
