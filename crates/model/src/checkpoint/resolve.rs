//! Resolution: which stored tensors make up each logical tensor of the catalogue.
//!
//! A naming (GGUF's in [`super::gguf`], Hugging Face's in [`super::hf_names`]) lists for each logical tensor the [`Form`]s
//! in which a source may hold it, the preferred one first. [`Resolver`] takes the first that is there, checks shapes
//! and types, and names whatever is missing, surplus or mis-shaped. It looks at names, types and shapes only, never at
//! data.

use std::collections::HashMap;

use glim_quant::GgmlType;

use super::{Half, Origin, TensorDesc};
use crate::catalogue::{Role, TensorSpec};
use crate::config::Config;
use crate::error::Problems;

/// One tensor as it lies in the source.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) ty: GgmlType,
    /// Row-major.
    pub(super) shape: Vec<usize>,
    /// Whether it is F8_E4M3 in the file, so that F32 is what it is decoded to.
    pub(super) is_fp8: bool,
    /// Its file, where the source has several.
    pub(super) file: Option<String>,
}

impl Stored {
    /// For messages: the type in the file.
    fn type_name(&self) -> &'static str {
        if self.is_fp8 {
            super::hf::FP8
        } else {
            self.ty.name()
        }
    }

    /// For messages: the name, and the file where there is a choice.
    fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("`{}` in {file}", self.name),
            None => format!("`{}`", self.name),
        }
    }
}

/// A form in which a source may hold one logical tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is.
    Whole(String),
    /// Absent, and the same as another tensor.
    Tied(String),
    /// One half of each expert's rows: `[E, 2 * I, D]`, gate first.
    GateUp(String, Half),
    /// Keys or values of `[n_heads * (nope + v), kv_lora]`.
    KvB(String, Half),
    /// One tensor for each index of the first axis.
    Stack(Vec<String>),
}

/// How a source prints a shape, and how it names things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    Gguf,
    Hf,
}

impl Naming {
    fn forms(self, spec: &TensorSpec, config: &Config) -> Vec<Form> {
        match self {
            Naming::Gguf => super::gguf::forms(spec),
            Naming::Hf => super::hf_names::forms(spec, config),
        }
    }

    /// `[256, 768]`, and for GGUF also `(ggml {768, 256})`.
    fn shape(self, shape: &[usize]) -> String {
        let join = |dims: &mut dyn Iterator<Item = &usize>| {
            dims.map(usize::to_string).collect::<Vec<_>>().join(", ")
        };
        let row_major = format!("[{}]", join(&mut shape.iter()));
        match self {
            Naming::Gguf => format!("{row_major} (ggml {{{}}})", join(&mut shape.iter().rev())),
            Naming::Hf => row_major,
        }
    }
}

/// Takes logical tensors from a source one after the other and keeps account of what is left.
pub(super) struct Resolver<'a> {
    config: &'a Config,
    naming: Naming,
    stored: &'a [Stored],
    by_name: HashMap<&'a str, usize>,
    used: Vec<bool>,
    /// Names that were looked for in vain: what a surplus name may be a misspelling of.
    missing: Vec<String>,
    problems: Problems,
    oddities: Vec<String>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(config: &'a Config, naming: Naming, stored: &'a [Stored]) -> Self {
        let by_name = stored
            .iter()
            .enumerate()
            .map(|(index, tensor)| (tensor.name.as_str(), index))
            .collect();
        Resolver {
            config,
            naming,
            stored,
            by_name,
            used: vec![false; stored.len()],
            missing: Vec::new(),
            problems: Problems::default(),
            oddities: Vec::new(),
        }
    }

    /// Whether the source holds anything that `spec` could be made of; a tie does not count.
    pub(super) fn holds(&self, spec: &TensorSpec) -> bool {
        self.naming
            .forms(spec, self.config)
            .iter()
            .any(|form| !matches!(form, Form::Tied(_)) && self.is_present(form))
    }

    /// Resolves each of `specs`, in order. Those that cannot be are left out, and noted as problems.
    pub(super) fn take_all(&mut self, specs: &[TensorSpec]) -> Vec<TensorDesc> {
        let mut descs = Vec::with_capacity(specs.len());
        for spec in specs {
            // A hostile configuration may ask for millions of tensors: a handful of missing ones is enough to know.
            if self.problems.is_full() {
                self.problems.cut_short();
                break;
            }
            descs.extend(self.take(spec));
        }
        self.set_aside_kv_b(&descs);
        descs
    }

    /// Takes note that the tensors of `specs` may be there and are not needed. Returns whether any was.
    pub(super) fn ignore(&mut self, specs: &[TensorSpec]) -> bool {
        let mut any = false;
        for spec in specs {
            for form in self.naming.forms(spec, self.config) {
                if let Form::Whole(name) = form {
                    any |= self.mark(&name);
                }
            }
        }
        any
    }

    pub(super) fn note(&mut self, oddity: String) {
        self.oddities.push(oddity);
    }

    /// Names every tensor that nothing asked for, then hands over problems and oddities.
    pub(super) fn finish(mut self) -> (Problems, Vec<String>) {
        // Half-way through a broken catalogue everything else would look surplus.
        if !self.problems.is_full() {
            let unused = self
                .stored
                .iter()
                .zip(&self.used)
                .filter(|(_, used)| !**used);
            for (tensor, _) in unused {
                self.problems
                    .push(|| describe_surplus(tensor, &self.missing));
            }
        }
        (self.problems, self.oddities)
    }

    fn is_present(&self, form: &Form) -> bool {
        match form {
            Form::Whole(name) | Form::Tied(name) | Form::GateUp(name, _) | Form::KvB(name, _) => {
                self.by_name.contains_key(name.as_str())
            }
            Form::Stack(names) => names
                .iter()
                .any(|name| self.by_name.contains_key(name.as_str())),
        }
    }

    fn mark(&mut self, name: &str) -> bool {
        let index = self.by_name.get(name).copied();
        if let Some(index) = index {
            self.used[index] = true;
        }
        index.is_some()
    }

    fn take(&mut self, spec: &TensorSpec) -> Option<TensorDesc> {
        let forms = self.naming.forms(spec, self.config);
        let Some(form) = forms.iter().find(|form| self.is_present(form)) else {
            self.note_missing(spec, &forms);
            return None;
        };
        let (origin, ty) = match form {
            Form::Whole(name) => {
                let index = self.take_stored(name, &accepted_shapes(spec))?;
                (Origin::Whole(index), self.stored[index].ty)
            }
            Form::Tied(name) => {
                let index = self.take_stored(name, std::slice::from_ref(&spec.shape))?;
                let absent = match forms.first() {
                    Some(Form::Whole(own)) => own,
                    _ => &spec.name,
                };
                self.oddities.push(format!(
                    "`{absent}` is absent: `{name}` is used in its place"
                ));
                (Origin::Whole(index), self.stored[index].ty)
            }
            Form::GateUp(name, half) => {
                let [experts, inner, hidden] = *spec.shape.as_slice() else {
                    return None;
                };
                let index = self.take_stored(name, &[vec![experts, 2 * inner, hidden]])?;
                (Origin::GateUp(index, *half), self.stored[index].ty)
            }
            Form::KvB(name, half) => {
                let dims = super::kv_b_dims(self.config);
                let index = self.take_stored(
                    name,
                    &[vec![dims.n_heads * (dims.nope + dims.v), dims.rank]],
                )?;
                let ty = match half {
                    Half::First => super::transposable(self.stored[index].ty),
                    Half::Second => self.stored[index].ty,
                };
                (Origin::KvB(index, *half), ty)
            }
            Form::Stack(names) => self.take_stack(spec, names)?,
        };
        if spec.role.is_float_only() && !is_float(ty) {
            let name = &spec.name;
            self.problems.push(|| {
                format!(
                    "tensor `{name}` has type {}; expected F32, F16 or BF16",
                    ty.name()
                )
            });
            return None;
        }
        Some(TensorDesc {
            name: spec.name.clone(),
            role: spec.role,
            layer: spec.layer,
            ty,
            shape: spec.shape.clone(),
            origin,
        })
    }

    /// Looks a stored tensor up and checks its shape against those that would do.
    fn take_stored(&mut self, name: &str, accepted: &[Vec<usize>]) -> Option<usize> {
        let &index = self.by_name.get(name)?;
        self.used[index] = true;
        let found = &self.stored[index].shape;
        if !accepted.iter().any(|shape| same_shape(shape, found)) {
            let (naming, stored) = (self.naming, self.stored);
            self.problems.push(|| {
                let expected: Vec<String> =
                    accepted.iter().map(|shape| naming.shape(shape)).collect();
                let found = naming.shape(&stored[index].shape);
                format!(
                    "tensor {} has shape {found}; expected {}",
                    stored[index].place(),
                    expected.join(" or ")
                )
            });
            return None;
        }
        Some(index)
    }

    fn take_stack(&mut self, spec: &TensorSpec, names: &[String]) -> Option<(Origin, GgmlType)> {
        let item_shape = spec.shape.get(1..)?.to_vec();
        let (problems_before, mut indices) =
            (self.problems.clone(), Vec::with_capacity(names.len()));
        for name in names {
            if !self.by_name.contains_key(name.as_str()) {
                self.missing.push(name.clone());
                let (naming, shape) = (self.naming, &item_shape);
                self.problems.push(|| {
                    format!(
                        "tensor `{name}` is missing; expected shape {}",
                        naming.shape(shape)
                    )
                });
                continue;
            }
            indices.extend(self.take_stored(name, std::slice::from_ref(&item_shape)));
        }
        if self.problems != problems_before {
            return None;
        }
        let &first = indices.first()?;
        let ty = self.stored[first].ty;
        if let Some(&other) = indices.iter().find(|&&index| self.stored[index].ty != ty) {
            let (first, other) = (&self.stored[first], &self.stored[other]);
            self.problems.push(|| {
                format!(
                    "tensor {} has type {} and {} has type {}; expected one type for the experts of a layer",
                    first.place(),
                    first.type_name(),
                    other.place(),
                    other.type_name()
                )
            });
            return None;
        }
        Some((Origin::Stack(indices), ty))
    }

    fn note_missing(&mut self, spec: &TensorSpec, forms: &[Form]) {
        let names: Vec<&str> = forms
            .iter()
            .filter_map(|form| match form {
                Form::Whole(name)
                | Form::Tied(name)
                | Form::GateUp(name, _)
                | Form::KvB(name, _) => Some(name.as_str()),
                Form::Stack(names) => names.first().map(String::as_str),
            })
            .collect();
        self.missing
            .extend(names.iter().map(|&name| name.to_owned()));
        let Some((name, others)) = names.split_first() else {
            return;
        };
        let naming = self.naming;
        self.problems.push(|| {
            let shape = match &forms[0] {
                Form::KvB(..) => String::new(),
                Form::Stack(_) => format!("; expected shape {}", naming.shape(&spec.shape[1..])),
                _ => format!("; expected shape {}", naming.shape(&spec.shape)),
            };
            let instead: String = others
                .iter()
                .map(|other| format!(", or `{other}` in its place"))
                .collect();
            format!("tensor `{name}` is missing{shape}{instead}")
        });
    }

    /// Some files carry `attn_kv_b` beside its halves: the halves are taken.
    fn set_aside_kv_b(&mut self, descs: &[TensorDesc]) {
        let halves = descs
            .iter()
            .filter(|d| d.role == Role::AttnKB && matches!(d.origin, Origin::Whole(_)));
        let mut beside = Vec::new();
        for desc in halves {
            let Some(layer) = desc.layer else { continue };
            let name = super::gguf::kv_b_name(layer);
            if self
                .by_name
                .get(name.as_str())
                .is_some_and(|&index| !self.used[index])
            {
                self.mark(&name);
                beside.push(layer);
            }
        }
        if !beside.is_empty() {
            self.oddities.push(format!(
                "`attn_kv_b` stands beside `attn_k_b` and `attn_v_b` in {}: it is ignored",
                layer_list(&beside)
            ));
        }
    }
}

fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// The logical shape; for the halves of `kv_b` also the 2-D form of some forks, which is the same memory.
fn accepted_shapes(spec: &TensorSpec) -> Vec<Vec<usize>> {
    match (spec.role, spec.shape.as_slice()) {
        (Role::AttnKB | Role::AttnVB, &[heads, rows, cols]) => {
            vec![spec.shape.clone(), vec![heads * rows, cols]]
        }
        _ => vec![spec.shape.clone()],
    }
}

/// Equal but for leading ones, which GGUF does not keep.
fn same_shape(a: &[usize], b: &[usize]) -> bool {
    let strip = |shape: &[usize]| {
        shape
            .iter()
            .copied()
            .skip_while(|&n| n == 1)
            .collect::<Vec<_>>()
    };
    strip(a) == strip(b)
}

/// `layer 3`, or `layers 2, 4, 5 and 73 more`.
pub(super) fn layer_list(layers: &[usize]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = layers.iter().take(SHOWN).map(usize::to_string).collect();
    let more = layers.len().saturating_sub(SHOWN);
    let plural = if layers.len() == 1 { "" } else { "s" };
    let tail = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("layer{plural} {}{tail}", shown.join(", "))
}

fn describe_surplus(tensor: &Stored, missing: &[String]) -> String {
    let name = tensor.name.as_str();
    let base = format!("tensor {} is not one of this model's", tensor.place());
    if let Some(matrix) = name.strip_suffix(super::fp8::SCALE_SUFFIX) {
        return format!(
            "{base}: `{matrix}` is not of type F8_E4M3, which is what such scales are for"
        );
    }
    if name.ends_with(".scale") {
        return format!("{base}: separate scales are not supported yet");
    }
    match closest(name, missing) {
        Some(near) => format!("{base}; did you mean `{near}`?"),
        None => base,
    }
}

/// The candidate within a few edits of `name`, if there is one.
fn closest<'a>(name: &str, candidates: &'a [String]) -> Option<&'a str> {
    /// Edits beyond which two names are not the same one misspelt.
    const MAX_EDITS: usize = 4;
    candidates
        .iter()
        .map(|candidate| (edit_distance(name, candidate), candidate.as_str()))
        .filter(|&(distance, _)| distance <= MAX_EDITS)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance in bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_changes() {
        for (a, b, distance) in [
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("same", "same", 0),
            ("ab", "ba", 2),
        ] {
            assert_eq!(edit_distance(a, b), distance, "{a} {b}");
        }
    }

    #[test]
    fn shapes_differ_by_leading_ones_only() {
        assert!(same_shape(&[1, 3, 4], &[3, 4]));
        assert!(!same_shape(&[3, 1, 4], &[3, 4]));
        assert!(!same_shape(&[3, 4], &[4, 3]));
    }

    #[test]
    fn long_layer_lists_are_cut() {
        assert_eq!(layer_list(&[3]), "layer 3");
        assert_eq!(
            layer_list(&(0..10).collect::<Vec<_>>()),
            "layers 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
        );
    }
}
