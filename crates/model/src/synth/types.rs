//! Which type each tensor gets.
//!
//! Real files are mixes. Those of llama.cpp's quantiser follow its rules ([`crate::quantize`]); two more are tables by class
//! of tensor, of files that their publishers or readers describe:
//!
//! - `ud-q2_k_xl`: Unsloth's GLM-5.2 UD-Q2_K_XL, from reports that list its tensors.
//! - `q8_0-q4_k`: AesSedai's GLM-5.1 Q4_K_M, from its card: Q8_0, and routed experts Q4_K, down Q5_K.
//!
//! A plain type goes to every matrix, for types that no quantiser of ours makes. In both of these, vectors, the router and
//! the projection of the index heads stay F32. Where rows are no whole blocks (`attn_k_b` has 192 columns in GLM-5),
//! llama.cpp's fall-backs apply (`tensor_type_fallback` in `src/llama-quant.cpp`).

use glim_quant::GgmlType;

use super::SynthError;
use crate::catalogue::{Role, TensorSpec};
use crate::config::Config;
use crate::quantize::{Facts, Mix, Options, TensorFacts, choose};

/// Tells the type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeRule {
    /// As llama.cpp's quantiser makes it.
    Mix(Mix),
    /// This one for every matrix.
    Plain(GgmlType),
    /// As in a file that somebody published.
    Published(Published),
}

/// Files whose types are known by class of tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// 2 bits for routed experts, 5 to 8 for the rest.
    UdQ2KXl,
    /// 4 and 5 bits for routed experts, 8 for the rest.
    Q8_0Q4K,
}

impl Published {
    const ALL: [Published; 2] = [Self::UdQ2KXl, Self::Q8_0Q4K];

    /// What the command line calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::UdQ2KXl => "ud-q2_k_xl",
            Self::Q8_0Q4K => "q8_0-q4_k",
        }
    }

    fn type_of(self, role: Role) -> GgmlType {
        use GgmlType as T;
        match (self, role) {
            (Self::UdQ2KXl, Role::TokenEmbd) => T::Q5_K,
            (Self::UdQ2KXl, Role::Output) => T::Q4_K,
            (Self::UdQ2KXl, Role::AttnQA | Role::AttnOutput) => T::Q5_K,
            (Self::UdQ2KXl, Role::FfnGateExps | Role::FfnUpExps) => T::IQ2_XS,
            (Self::UdQ2KXl, Role::FfnDownExps) => T::IQ3_XXS,
            (Self::UdQ2KXl, Role::FfnDown | Role::FfnDownShexp) => T::Q6_K,
            (
                Self::UdQ2KXl,
                Role::FfnGate | Role::FfnUp | Role::FfnGateShexp | Role::FfnUpShexp,
            ) => T::Q5_K,
            (Self::Q8_0Q4K, Role::FfnGateExps | Role::FfnUpExps) => T::Q4_K,
            (Self::Q8_0Q4K, Role::FfnDownExps) => T::Q5_K,
            _ => T::Q8_0,
        }
    }
}

/// Types by class of weight, for a model that exists on paper only: for measuring one mix beside another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classes {
    /// Every matrix that has no other class; a smaller block stands in where rows are no whole blocks.
    pub dense: GgmlType,
    /// Routed experts.
    pub experts: GgmlType,
    /// The router.
    pub router: GgmlType,
}

impl Classes {
    /// The type of a weight. Vectors and the projection of the index heads are F32 as everywhere.
    pub fn type_of(self, spec: &TensorSpec) -> GgmlType {
        let columns = spec.shape.last().copied().unwrap_or(1);
        match spec.role {
            Role::FfnGateInp => fitting(self.router, columns),
            role if role.is_float_only() || role == Role::IndexerProj => GgmlType::F32,
            Role::FfnGateExps | Role::FfnUpExps | Role::FfnDownExps => {
                fitting(self.experts, columns)
            }
            _ => fitting(self.dense, columns),
        }
    }
}

impl TypeRule {
    /// From a name, in any case.
    ///
    /// # Errors
    /// [`SynthError::UnknownType`].
    pub fn from_name(name: &str) -> Result<Self, SynthError> {
        if let Ok(mix) = Mix::from_name(name) {
            return Ok(Self::Mix(mix));
        }
        let lower = name.to_ascii_lowercase();
        if let Some(file) = Published::ALL.into_iter().find(|file| file.name() == lower) {
            return Ok(Self::Published(file));
        }
        match GgmlType::from_name(name) {
            Some(ty) if ty.can_decode() => Ok(Self::Plain(ty)),
            _ => Err(SynthError::UnknownType {
                name: name.to_owned(),
                known: Self::names().join(", "),
            }),
        }
    }

    /// All names.
    pub fn names() -> Vec<String> {
        let mixes = Mix::ALL.iter().map(|mix| mix.name());
        let files = Published::ALL.iter().map(|file| file.name());
        let types = GgmlType::ALL.iter().filter(|ty| ty.can_decode());
        let plain = types.map(|ty| ty.name().to_ascii_lowercase());
        let plain = plain.filter(|name| Mix::from_name(name).is_err());
        let named = mixes.chain(files).map(str::to_owned);
        named.chain(plain).collect()
    }

    /// The types of all tensors of a model, in their order: some rules count tensors.
    ///
    /// # Errors
    /// [`SynthError::Quantize`] if a mix has no rule for a tensor; it has one for all of the catalogue.
    pub fn types(self, specs: &[TensorSpec], config: &Config) -> Result<Vec<GgmlType>, SynthError> {
        let by_role = |type_of: &dyn Fn(Role) -> GgmlType| {
            let of = |spec: &TensorSpec| match spec.role {
                role if role.is_float_only() || role == Role::IndexerProj => GgmlType::F32,
                role => fitting(type_of(role), spec.shape.last().copied().unwrap_or(1)),
            };
            Ok(specs.iter().map(of).collect())
        };
        match self {
            Self::Mix(mix) => mixed(mix, specs, config),
            Self::Published(file) => by_role(&|role| file.type_of(role)),
            Self::Plain(ty) => by_role(&|_| ty),
        }
    }

    /// The number in `general.file_type`: `LLAMA_FTYPE` of most weights. It informs people; readers go by the tensors.
    pub(super) fn file_type(self) -> u32 {
        use GgmlType as T;
        match self {
            Self::Mix(mix) => mix.file_type(),
            Self::Published(Published::UdQ2KXl) => 10,
            Self::Published(Published::Q8_0Q4K) => 15,
            Self::Plain(ty) => match ty {
                T::F32 => 0,
                T::F16 => 1,
                T::Q4_0 => 2,
                T::Q4_1 => 3,
                T::Q8_0 => 7,
                T::Q5_0 => 8,
                T::Q5_1 => 9,
                T::Q2_K => 10,
                T::Q3_K => 12,
                T::Q4_K => 14,
                T::Q5_K => 16,
                T::Q6_K => 18,
                T::IQ2_XXS => 19,
                T::IQ2_XS => 20,
                T::IQ3_XXS => 23,
                T::IQ1_S => 24,
                T::IQ4_NL => 25,
                T::IQ3_S => 26,
                T::IQ2_S => 28,
                T::IQ4_XS => 30,
                T::IQ1_M => 31,
                T::BF16 => 32,
                T::TQ1_0 => 36,
                T::TQ2_0 => 37,
                T::MXFP4 => 38,
                // `LLAMA_FTYPE_GUESSED`: nothing else fits.
                _ => 1024,
            },
        }
    }
}

/// What the quantiser makes of the model that the converter writes.
fn mixed(mix: Mix, specs: &[TensorSpec], config: &Config) -> Result<Vec<GgmlType>, SynthError> {
    let dims: Vec<Vec<u64>> = specs.iter().map(super::ggml_dims).collect();
    let facts: Vec<TensorFacts<'_>> = specs
        .iter()
        .zip(&dims)
        .map(|(spec, dims)| TensorFacts {
            name: &spec.name,
            ggml_dims: dims,
            // What the quantiser keeps as it is.
            ty: GgmlType::F32,
        })
        .collect();
    let options = Options {
        mix: Some(mix),
        ..Options::default()
    };
    let choices = choose(&Facts::of_config(config), &facts, &options)?;
    Ok(choices.into_iter().map(|choice| choice.ty).collect())
}

/// `ty`, or what stands in for it in rows of so many columns.
fn fitting(ty: GgmlType, columns: usize) -> GgmlType {
    use GgmlType as T;
    if columns.is_multiple_of(ty.block_elems()) {
        return ty;
    }
    let smaller = match ty {
        T::Q2_K | T::Q3_K | T::TQ1_0 | T::TQ2_0 => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K | T::Q8_K => T::Q8_0,
        _ => T::IQ4_NL,
    };
    if columns.is_multiple_of(smaller.block_elems()) {
        smaller
    } else {
        T::F16
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use glim_gguf::Metadata;

    use super::*;
    use crate::synth::SynthPlan;

    #[test]
    fn rows_that_are_no_whole_blocks_get_a_smaller_block_or_none() {
        for (ty, columns, expected) in [
            (GgmlType::Q4_K, 256, GgmlType::Q4_K),
            (GgmlType::Q4_K, 192, GgmlType::Q5_0),
            (GgmlType::Q6_K, 192, GgmlType::Q8_0),
            (GgmlType::IQ2_XS, 192, GgmlType::IQ4_NL),
            (GgmlType::Q3_K, 192, GgmlType::Q4_0),
            (GgmlType::Q8_0, 20, GgmlType::F16),
            (GgmlType::Q4_K, 20, GgmlType::F16),
        ] {
            assert_eq!(fitting(ty, columns), expected, "{ty} in {columns} columns");
        }
    }

    #[test]
    fn every_name_leads_to_a_rule_and_others_are_refused_with_the_list() {
        for name in TypeRule::names() {
            TypeRule::from_name(&name.to_ascii_uppercase()).unwrap();
        }
        let refused = TypeRule::from_name("q9_9").unwrap_err().to_string();
        assert!(
            refused.starts_with("`q9_9` is no type: expected one of f32, bf16, "),
            "{refused}"
        );
        assert!(TypeRule::from_name("i32").is_err());
    }

    #[test]
    fn the_published_mix_has_the_published_size() {
        // Published for GLM-5.1: 432.8 GiB.
        let config = Config::glm5();
        let rule = TypeRule::from_name("q8_0-q4_k").unwrap();
        let plan = SynthPlan::new(&config, rule, "GLM-5", &Metadata::new()).unwrap();
        let gib = plan.data_bytes() as f64 / f64::from(1 << 30);
        assert_eq!(format!("{gib:.1}"), "432.8");
    }
}
