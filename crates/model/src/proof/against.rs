//! Level 3: a checkpoint beside another one of the same model, tensor by tensor: the folder it was made of, or another publisher's file.
//!
//! Both are taken in their logical form, so that it does not matter how either stores it. `compare.rs` says what is expected of each pair of
//! types, `bounds.rs` how far a block may be off that other encoders made.
//!
//! **Who made the file?** A block that is not byte for byte what our encoder writes, and yet within its bound, is what another
//! encoder or an importance matrix makes; or a sound block of which a low bit was turned over. One block cannot tell, a file can: other
//! encoders differ in many blocks. Where no more than [`SAME_ENCODER`] of a type's blocks differ, or one, ours made the file, and
//! each that differs is named.

use std::collections::BTreeMap;
use std::ops::Range;

use glim_quant::GgmlType;

use super::Progress;
use super::compare::{Compared, compare};
use super::logical::{CHUNK_ELEMENTS, Logical};
use super::parallel;
use super::report::{BadElement, Check, Level, Timer};
use super::stored::{StoredTensor, descs, stored};
use super::words::{bytes, counted, thousands};
use crate::checkpoint::{Checkpoint, TensorDesc};
use crate::config::Config;
use crate::error::ModelError;

/// The part of a type's blocks that may differ in a file of which each differing block is taken for a fault.
pub const SAME_ENCODER: f64 = 1e-4;

/// Names that a message lists.
const MAX_LISTED: usize = 3;

/// Level 3. One check for the hyper-parameters, one for the list of tensors, and one for each type that the file uses. `progress` is
/// called with bytes that add up to [`against_bytes`].
pub fn against(checkpoint: &Checkpoint, other: &Checkpoint, progress: Progress<'_>) -> Vec<Check> {
    let mut checks = vec![hyper_parameters(checkpoint.config(), other.config())];
    let (pairs, catalogue) = pairs(checkpoint, other);
    checks.push(catalogue);
    checks.extend(types(checkpoint, other, &pairs, progress));
    checks
}

/// The bytes that [`against`] reports as progress: those of all of the file's logical tensors that the other has too.
pub fn against_bytes(checkpoint: &Checkpoint, other: &Checkpoint) -> u64 {
    let (pairs, _) = pairs(checkpoint, other);
    pairs.iter().map(|(desc, _)| desc.byte_len() as u64).sum()
}

fn hyper_parameters(found: &Config, expected: &Config) -> Check {
    let timer = Timer::start(Level::Checkpoint, "hyper-parameters");
    let (found, expected) = (fields(found), fields(expected));
    let covered = counted(found.len(), "value");
    let differing = found.iter().zip(&expected).find(|(a, b)| a != b);
    match differing {
        None => timer.passed(covered, 0, ""),
        Some(((name, found), (_, expected))) => {
            let detail = format!("`{name}` is {found}, and {expected} in the other checkpoint");
            let bad = BadElement {
                tensor: (*name).to_owned(),
                row: 0,
                col: 0,
                expected: expected.clone(),
                found: found.clone(),
            };
            timer.failed(covered, 0, detail, Some(bad))
        }
    }
}

/// What decides on the output. MTP blocks may be stripped, and the epsilon of latent norms is an option of ours.
fn fields(config: &Config) -> Vec<(&'static str, String)> {
    // Taken apart, so that a new field is not forgotten.
    let Config {
        arch,
        n_layers,
        n_mtp_layers: _,
        hidden_size,
        vocab_size,
        max_context,
        rms_norm_eps,
        latent_norm_eps: _,
        n_heads,
        q_lora_rank,
        kv_lora_rank,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        rope_theta,
        intermediate_size,
        moe,
        indexer,
    } = config;
    vec![
        ("arch", arch.clone()),
        ("n_layers", n_layers.to_string()),
        ("hidden_size", hidden_size.to_string()),
        ("vocab_size", vocab_size.to_string()),
        ("max_context", max_context.to_string()),
        ("rms_norm_eps", rms_norm_eps.to_string()),
        ("n_heads", n_heads.to_string()),
        ("q_lora_rank", q_lora_rank.to_string()),
        ("kv_lora_rank", kv_lora_rank.to_string()),
        ("qk_nope_head_dim", qk_nope_head_dim.to_string()),
        ("qk_rope_head_dim", qk_rope_head_dim.to_string()),
        ("v_head_dim", v_head_dim.to_string()),
        ("rope_theta", rope_theta.to_string()),
        ("intermediate_size", intermediate_size.to_string()),
        ("moe", format!("{moe:?}")),
        ("indexer", format!("{indexer:?}")),
    ]
}

type Pair<'a> = (&'a TensorDesc, &'a TensorDesc);

/// The tensors that both have, in the file's catalogue order, and what one of them lacks.
fn pairs<'a>(checkpoint: &'a Checkpoint, other: &'a Checkpoint) -> (Vec<Pair<'a>>, Check) {
    let timer = Timer::start(Level::Checkpoint, "tensors");
    let by_name = |checkpoint: &'a Checkpoint| -> BTreeMap<&'a str, &'a TensorDesc> {
        descs(checkpoint)
            .map(|desc| (desc.name.as_str(), desc))
            .collect()
    };
    let (ours, theirs) = (by_name(checkpoint), by_name(other));
    let mut pairs = Vec::new();
    let (mut problems, mut first_bad) = (Vec::new(), None);
    for desc in descs(checkpoint) {
        match theirs.get(desc.name.as_str()) {
            Some(their) if their.shape == desc.shape => pairs.push((desc, *their)),
            Some(their) => {
                problems.push(format!("`{}` has another shape", desc.name));
                first_bad.get_or_insert(BadElement {
                    tensor: desc.name.clone(),
                    row: 0,
                    col: 0,
                    expected: format!("shape {:?}", their.shape),
                    found: format!("shape {:?}", desc.shape),
                });
            }
            None => {}
        }
    }
    // A block without counterpart is one that was stripped on the other side.
    let has_mtp = |checkpoint: &Checkpoint| !checkpoint.mtp_tensors().is_empty();
    let is_lacking =
        |descs: &'a [TensorDesc], list: &BTreeMap<&str, &TensorDesc>| -> Vec<&'a str> {
            let names = descs.iter().map(|desc| desc.name.as_str());
            names.filter(|name| !list.contains_key(name)).collect()
        };
    let mut lacking = |mut names: Vec<&str>, who: &str, is_missing_here: bool| {
        let Some(&first) = names.first() else { return };
        let n = names.len();
        names.truncate(MAX_LISTED);
        let more = if n > names.len() {
            format!(" and {} more", n - names.len())
        } else {
            String::new()
        };
        problems.push(format!("{who} lacks `{}`{more}", names.join("`, `")));
        let (expected, found) = match is_missing_here {
            true => ("this tensor", "nothing"),
            false => ("nothing", "this tensor"),
        };
        first_bad.get_or_insert(BadElement {
            tensor: first.to_owned(),
            row: 0,
            col: 0,
            expected: expected.to_owned(),
            found: found.to_owned(),
        });
    };
    lacking(is_lacking(other.tensors(), &ours), "the file", true);
    lacking(
        is_lacking(checkpoint.tensors(), &theirs),
        "the other checkpoint",
        false,
    );
    let mut remark = String::new();
    match (has_mtp(checkpoint), has_mtp(other)) {
        (true, false) => {
            "the MTP block is not compared: the other checkpoint has none".clone_into(&mut remark)
        }
        (false, true) => {
            "the file has no MTP block, the other checkpoint has".clone_into(&mut remark)
        }
        (true, true) => {
            lacking(is_lacking(other.mtp_tensors(), &ours), "the file", true);
            lacking(
                is_lacking(checkpoint.mtp_tensors(), &theirs),
                "the other checkpoint",
                false,
            );
        }
        (false, false) => {}
    }
    let covered = format!("{} of both", counted(pairs.len(), "tensor"));
    let check = match problems.is_empty() {
        true => timer.passed(covered, 0, remark),
        false => timer.failed(covered, 0, problems.join("; "), first_bad),
    };
    (pairs, check)
}

/// What became of the tensors of one type.
#[derive(Default)]
struct Class {
    tensors: usize,
    identical_tensors: usize,
    identical: u64,
    others: u64,
    bytes: u64,
    holes: usize,
    worst: f64,
    first_other: Option<BadElement>,
    first_bad: Option<BadElement>,
    bad_tensors: usize,
    error: Option<String>,
}

struct Item<'a> {
    pair: usize,
    file: &'a Logical<'a>,
    other: &'a Logical<'a>,
    elements: Range<usize>,
}

fn types(
    checkpoint: &Checkpoint,
    other: &Checkpoint,
    pairs: &[Pair<'_>],
    progress: Progress<'_>,
) -> Vec<Check> {
    let started = Timer::start(Level::Checkpoint, "bytes");
    let (ours, theirs) = (stored(checkpoint), stored(other));
    let logicals: Result<Vec<_>, String> = (pairs.iter())
        .map(|(desc, their)| {
            let file = logical(checkpoint, &ours, desc)?;
            Ok((file, logical(other, &theirs, their)?))
        })
        .collect();
    let logicals = match logicals {
        Ok(logicals) => logicals,
        Err(error) => return vec![started.failed("", 0, error, None)],
    };
    let mut items = Vec::new();
    for (pair, (file, other)) in logicals.iter().enumerate() {
        for elements in file.chunks() {
            items.push(Item {
                pair,
                file,
                other,
                elements,
            });
        }
    }
    // The numbers, both sides' bytes at up to four an element, and as much again for what is expected.
    let bytes_each = 16 * CHUNK_ELEMENTS;
    let results = parallel::map(&items, bytes_each, |item| {
        let result = compare(item.file, item.other, &item.elements);
        let ty = item.file.desc.ty;
        progress((item.elements.len() / ty.block_elems() * ty.block_bytes()) as u64);
        result
    });
    let mut classes: BTreeMap<GgmlType, Class> = BTreeMap::new();
    let mut results = items.iter().zip(results).peekable();
    for (pair, (desc, _)) in pairs.iter().enumerate() {
        let class = classes.entry(desc.ty).or_default();
        class.tensors += 1;
        let (others, bad) = (class.others, class.bad());
        while let Some((_, result)) = results.next_if(|(item, _)| item.pair == pair) {
            class.add(result);
        }
        class.identical_tensors += usize::from(others == class.others && bad == class.bad());
    }
    (classes.into_iter())
        .map(|(ty, class)| class.check(ty, started.clone()))
        .collect()
}

fn logical<'a>(
    checkpoint: &'a Checkpoint,
    stored: &'a [StoredTensor<'a>],
    desc: &'a TensorDesc,
) -> Result<Logical<'a>, String> {
    Logical::new(checkpoint, stored, desc).map_err(|error| error.to_string())
}

impl Class {
    fn bad(&self) -> usize {
        self.bad_tensors
    }

    fn add(&mut self, result: Result<Compared, ModelError>) {
        let compared = match result {
            Ok(compared) => compared,
            Err(error) => {
                self.error.get_or_insert(error.to_string());
                return;
            }
        };
        self.identical += compared.identical;
        self.others += compared.others;
        self.bytes += compared.bytes;
        self.holes += usize::from(compared.holes);
        self.worst = self.worst.max(compared.worst);
        self.first_other = self.first_other.take().or(compared.first_other);
        self.bad_tensors += usize::from(compared.first_bad.is_some());
        self.first_bad = self.first_bad.take().or(compared.first_bad);
    }

    fn check(self, ty: GgmlType, started: Timer) -> Check {
        let timer = started.named(ty.name().to_ascii_lowercase());
        let covered = format!("{}, {}", counted(self.tensors, "tensor"), bytes(self.bytes));
        if let Some(error) = self.error {
            return timer.failed(covered, self.bytes, error, None);
        }
        let blocks = self.identical + self.others;
        let differing = format!(
            "{} of {} differ",
            thousands(self.others),
            counted(blocks as usize, unit(ty))
        );
        if let Some(bad) = self.first_bad {
            let far = match ty.block_elems() {
                1 => String::new(),
                _ => format!(", by up to {} times the bound", times(self.worst)),
            };
            let detail = format!(
                "`{}` is not the other checkpoint's: {differing}{far}; convert the file again from it",
                bad.tensor
            );
            return timer.failed(covered, self.bytes, detail, Some(bad));
        }
        let is_ours = self.others as f64 <= (SAME_ENCODER * blocks as f64).max(1.0);
        if let Some(bad) = self.first_other.filter(|_| is_ours && self.identical > 0) {
            let detail = format!(
                "`{}` is damaged: {differing} from what the encoder of this file writes, though within the type's bound",
                bad.tensor
            );
            return timer.failed(covered, self.bytes, detail, Some(bad));
        }
        let mut detail = match self.others {
            0 => "all are identical".to_owned(),
            _ => format!(
                "{} of them identical, the others within the type's bound: {differing}, by up to {} times the bound",
                self.identical_tensors,
                times(self.worst)
            ),
        };
        if self.holes > 0 {
            detail.push_str("; holes of both files were not read");
        }
        timer.passed(covered, self.bytes, detail)
    }
}

fn unit(ty: GgmlType) -> &'static str {
    match ty.block_elems() {
        1 => "element",
        _ => "block",
    }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}")
}
