//! What `glim quantize` says: notes, the plan, and what was written.

use std::collections::BTreeMap;
use std::path::Path;

use glim_model::quantize::{PlannedTensor, QuantizePlan};
use glim_plan::GgmlType;
use serde_json::{Value as Json, json};

use crate::exit::{Exit, Failure};
use crate::ui::Ui;
use crate::units;

/// Names that a note lists before it says how many more there are.
const LISTED: usize = 3;

/// What should not come as a surprise.
pub(super) fn tell_notes(plan: &QuantizePlan<'_>, has_imatrix: bool, ui: &Ui) {
    let again: Vec<_> = plan.tensors.iter().filter(|t| t.is_requantized()).collect();
    if !again.is_empty() {
        let mut types: Vec<&str> = again.iter().map(|t| t.source.ty.name()).collect();
        types.sort_unstable();
        types.dedup();
        ui.note(&format!(
            "note: {} were quantised before ({}) and lose more now: start from bf16 if there is such a file",
            counted(again.len()),
            types.join(", ")
        ));
    }
    let mut fallbacks: BTreeMap<(GgmlType, GgmlType), Vec<&PlannedTensor<'_>>> = BTreeMap::new();
    for tensor in &plan.tensors {
        if let Some(wanted) = tensor.choice.fallback_from {
            let found = fallbacks.entry((wanted, tensor.choice.ty)).or_default();
            found.push(tensor);
        }
    }
    for ((wanted, ty), tensors) in fallbacks {
        let n = tensors.len();
        let have = if n == 1 { "has" } else { "have" };
        ui.note(&format!(
            "note: {} {have} rows that are no whole blocks of {wanted} and become {ty}: {}",
            counted(n),
            listed(&tensors)
        ));
    }
    if let Some(tensor) = plan.without_weights() {
        ui.note(&format!(
            "note: {} would become {}, which needs an importance matrix that knows it",
            tensor.source.name, tensor.choice.ty
        ));
    }
    if has_imatrix {
        // The embedding table is looked up, not multiplied.
        let lacks = |t: &&PlannedTensor<'_>| {
            t.changes()
                && !t.has_weights
                && t.choice.ty.block_elems() > 1
                && t.source.name != "token_embd.weight"
        };
        let without: Vec<_> = plan.tensors.iter().filter(lacks).collect();
        if !without.is_empty() {
            ui.note(&format!(
                "note: the importance matrix does not know {}, which become what they would without one: {}",
                counted(without.len()),
                listed(&without)
            ));
        }
    }
}

fn counted(n: usize) -> String {
    format!("{n} tensor{}", if n == 1 { "" } else { "s" })
}

fn listed(tensors: &[&PlannedTensor<'_>]) -> String {
    let names: Vec<&str> = tensors
        .iter()
        .take(LISTED)
        .map(|t| t.source.name.as_str())
        .collect();
    match tensors.len().saturating_sub(LISTED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// `--dry-run`.
pub(super) fn plan(plan: &QuantizePlan<'_>, target: &str, ui: &Ui) -> Result<Exit, Failure> {
    if ui.json {
        let tensors: Vec<Json> = plan.tensors.iter().map(to_json).collect();
        let mut report = summary(plan, target);
        report["tensor_list"] = tensors.into();
        ui.print_json(&report)?;
    } else {
        ui.print(&table(plan))?;
    }
    Ok(Exit::Ok)
}

fn to_json(tensor: &PlannedTensor<'_>) -> Json {
    json!({
        "name": tensor.source.name,
        "shape": tensor.source.shape(),
        "from": tensor.source.ty.name(),
        "to": tensor.choice.ty.name(),
        "bytes": tensor.byte_len(),
        "why": tensor.choice.to_string(),
        "fallback_from": tensor.choice.fallback_from.map(GgmlType::name),
        "needs_imatrix": tensor.choice.needs_imatrix,
        "has_weights": tensor.has_weights,
    })
}

/// A line a tensor, then a line a type.
fn table(plan: &QuantizePlan<'_>) -> String {
    let shape = |t: &PlannedTensor<'_>| {
        let dims: Vec<String> = t.source.shape().iter().map(usize::to_string).collect();
        dims.join(" × ")
    };
    let width = |of: &dyn Fn(&PlannedTensor<'_>) -> usize| plan.tensors.iter().map(of).max();
    let names = width(&|t| t.source.name.len()).unwrap_or(0);
    let shapes = width(&|t| shape(t).chars().count()).unwrap_or(0);
    let mut out = String::new();
    for tensor in &plan.tensors {
        let bytes = units::bytes(tensor.byte_len());
        out += &format!(
            "{:<names$}  {:>shapes$}  {:>6} → {:<6}  {bytes:>11}  {}\n",
            tensor.source.name,
            shape(tensor),
            tensor.source.ty.name(),
            tensor.choice.ty.name(),
            tensor.choice,
        );
    }
    let mut types: BTreeMap<GgmlType, (usize, u64)> = BTreeMap::new();
    for tensor in &plan.tensors {
        let (n, bytes) = types.entry(tensor.choice.ty).or_default();
        *n += 1;
        *bytes += tensor.byte_len();
    }
    out += "\n";
    for (ty, (n, bytes)) in types {
        let bytes = units::bytes(bytes);
        out += &format!("{:<8} {n:>6} tensors  {bytes:>11}\n", ty.name());
    }
    let (n, bits) = (plan.tensors.len(), plan.bits_per_weight());
    let (from, to) = (
        units::bytes(plan.source_bytes()),
        units::bytes(plan.data_bytes()),
    );
    out + &format!(
        "{:<8} {n:>6} tensors  {to:>11} from {from}, {bits:.2} bits per weight\n",
        "all"
    )
}

fn summary(plan: &QuantizePlan<'_>, target: &str) -> Json {
    let count =
        |is: &dyn Fn(&PlannedTensor<'_>) -> bool| plan.tensors.iter().filter(|t| is(t)).count();
    json!({
        "type": target,
        "tensors": plan.tensors.len(),
        "source_bytes": plan.source_bytes(),
        "data_bytes": plan.data_bytes(),
        "bits_per_weight": plan.bits_per_weight(),
        "requantized": count(&|t| t.is_requantized()),
        "fallbacks": count(&|t| t.choice.fallback_from.is_some()),
    })
}

/// After the file is there.
pub(super) fn written(
    plan: &QuantizePlan<'_>,
    target: &str,
    out: &Path,
    seconds: f64,
    ui: &Ui,
) -> Result<Exit, Failure> {
    let bytes = std::fs::metadata(out)
        .map_err(|error| Failure::read(out, &error))?
        .len();
    let path = out.display().to_string();
    if ui.json {
        let mut report = summary(plan, target);
        report["path"] = path.into();
        report["bytes"] = bytes.into();
        report["seconds"] = seconds.into();
        ui.print_json(&report)?;
    } else {
        let read = plan.source_bytes();
        let rate = units::bytes((read as f64 / seconds.max(1e-9)) as u64);
        let (tensors, bits) = (plan.tensors.len(), plan.bits_per_weight());
        let (from, to) = (units::bytes(read), units::bytes(bytes));
        ui.print(&format!(
            "{path}: {tensors} tensors, {to} from {from}, {bits:.2} bits per weight, in {seconds:.1} s ({rate}/s read)\n"
        ))?;
    }
    Ok(Exit::Ok)
}
