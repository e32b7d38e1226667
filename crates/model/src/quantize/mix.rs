//! The mixes that `--type` names: most weights of one type, some of a better one.
//!
//! Names, numbers and default types are those of llama.cpp (`QUANT_OPTIONS` in `tools/quantize/quantize.cpp`, `enum
//! llama_ftype` in `include/llama.h`, `llama_ftype_get_default_type` in `src/llama-quant.cpp`). Which weights get a
//! better type is in [`super::choose`].

use glim_quant::GgmlType;

use super::QuantizeError;

macro_rules! mixes {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $id:literal $default:ident;)*) => {
        /// What a file's weights are stored as, most of them.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the field's own names: Q4_K_M, IQ4_XS")]
        pub enum Mix { $($(#[doc = $doc])+ $variant,)* }

        impl Mix {
            /// All mixes, floats first, then from large to small.
            pub const ALL: &'static [Mix] = &[$(Mix::$variant,)*];

            /// Its name on the command line: `q4_k_m`.
            pub fn name(self) -> &'static str {
                match self { $(Mix::$variant => $name,)* }
            }

            /// The number in `general.file_type`.
            pub fn file_type(self) -> u32 {
                match self { $(Mix::$variant => $id,)* }
            }

            /// The type of most weights.
            pub fn default_type(self) -> GgmlType {
                match self { $(Mix::$variant => GgmlType::$default,)* }
            }
        }
    };
}

mixes! {
    /// 32-bit floats.
    F32 "f32" 0 F32;
    /// The upper half of a 32-bit float: what checkpoints are published in.
    BF16 "bf16" 32 BF16;
    /// 16-bit floats with 5 bits of exponent.
    F16 "f16" 1 F16;
    /// 8-bit integers, 32 to a scale.
    Q8_0 "q8_0" 7 Q8_0;
    /// Q6_K everywhere.
    Q6_K "q6_k" 18 Q6_K;
    /// Q5_K, and Q6_K for about half of the matrices that matter most.
    Q5_K_M "q5_k_m" 17 Q5_K;
    /// Q5_K.
    Q5_K_S "q5_k_s" 16 Q5_K;
    /// Q5_1: with a minimum for each 32.
    Q5_1 "q5_1" 9 Q5_1;
    /// Q5_0.
    Q5_0 "q5_0" 8 Q5_0;
    /// Q4_1: with a minimum for each 32.
    Q4_1 "q4_1" 3 Q4_1;
    /// Q4_K, and Q6_K for about half of the matrices that matter most.
    Q4_K_M "q4_k_m" 15 Q4_K;
    /// Q4_K, and Q5_K in the first layers.
    Q4_K_S "q4_k_s" 14 Q4_K;
    /// Q4_0.
    Q4_0 "q4_0" 2 Q4_0;
    /// IQ4_NL: 4 bits on a curve, 32 to a scale.
    IQ4_NL "iq4_nl" 25 IQ4_NL;
    /// IQ4_XS: 4 bits on a curve, 256 to a scale.
    IQ4_XS "iq4_xs" 30 IQ4_XS;
    /// MXFP4 for what has three dimensions, Q8_0 for the rest.
    MXFP4 "mxfp4" 38 MXFP4;
    /// Q3_K, and Q5_K for the matrices that matter most.
    Q3_K_L "q3_k_l" 13 Q3_K;
    /// Q3_K, and Q4_K or Q5_K for the matrices that matter most.
    Q3_K_M "q3_k_m" 12 Q3_K;
    /// Q3_K.
    Q3_K_S "q3_k_s" 11 Q3_K;
    /// Q2_K, and Q3_K for the matrices that matter most.
    Q2_K "q2_k" 10 Q2_K;
    /// Q2_K, and Q4_K in the first layers; needs an importance matrix.
    Q2_K_S "q2_k_s" 21 Q2_K;
}

/// Other names of a mix.
const ALIASES: [(&str, Mix); 4] = [
    ("q3_k", Mix::Q3_K_M),
    ("q4_k", Mix::Q4_K_M),
    ("q5_k", Mix::Q5_K_M),
    ("mxfp4_moe", Mix::MXFP4),
];

/// Mixes of llama.cpp that need an encoder which glim lacks: beginning of the name, and what comes nearest.
const REFUSED: [(&str, &str); 8] = [
    ("iq3", "q3_k_m or q3_k_s"),
    ("iq2", "q2_k, or q2_k_s with --imatrix"),
    ("iq1", "q2_k, or q2_k_s with --imatrix"),
    ("tq", "q2_k"),
    ("q2_0", "q2_k"),
    ("q1_0", "q2_k, or q2_k_s with --imatrix"),
    ("nvfp4", "mxfp4"),
    ("fp8", "q8_0"),
];

impl Mix {
    /// The mix called `name`, in any case.
    ///
    /// # Errors
    /// [`QuantizeError::RefusedMix`] for one that llama.cpp has and glim has not, [`QuantizeError::UnknownMix`] for any
    /// other name.
    pub fn from_name(name: &str) -> Result<Self, QuantizeError> {
        let lower = name.to_ascii_lowercase();
        let own = Mix::ALL.iter().copied().find(|mix| mix.name() == lower);
        let alias = || ALIASES.iter().find(|(alias, _)| *alias == lower);
        if let Some(mix) = own.or_else(|| alias().map(|(_, mix)| *mix)) {
            return Ok(mix);
        }
        match REFUSED.iter().find(|(start, _)| lower.starts_with(start)) {
            Some((_, instead)) => Err(QuantizeError::RefusedMix {
                name: lower,
                instead,
            }),
            None => Err(QuantizeError::UnknownMix { name: name.into() }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_with_llama_cpps_aliases() {
        for (name, expected) in [
            ("q4_k_m", Mix::Q4_K_M),
            ("Q4_K", Mix::Q4_K_M),
            ("Q3_k", Mix::Q3_K_M),
            ("MXFP4_MOE", Mix::MXFP4),
            ("iq4_xs", Mix::IQ4_XS),
        ] {
            assert_eq!(Mix::from_name(name).unwrap(), expected, "{name}");
        }
        for mix in Mix::ALL {
            assert_eq!(Mix::from_name(mix.name()).unwrap(), *mix);
        }
    }

    #[test]
    fn a_mix_without_an_encoder_is_refused_with_what_to_use_instead() {
        for (name, expected) in [
            (
                "IQ2_XXS",
                "iq2_xxs needs an encoder that glim lacks; use q2_k, or q2_k_s with --imatrix instead",
            ),
            (
                "iq3_m",
                "iq3_m needs an encoder that glim lacks; use q3_k_m or q3_k_s instead",
            ),
        ] {
            assert_eq!(Mix::from_name(name).unwrap_err().to_string(), expected);
        }
        let unknown = Mix::from_name("q9").unwrap_err().to_string();
        assert!(
            unknown.starts_with("`q9` is no type: expected one of f32, bf16, f16, q8_0, "),
            "{unknown}"
        );
    }

    #[test]
    fn every_mix_has_an_encoder_for_most_of_its_weights_and_a_number_of_its_own() {
        for (i, mix) in Mix::ALL.iter().enumerate() {
            assert!(mix.default_type().can_encode(), "{}", mix.name());
            let same = |other: &&Mix| other.file_type() == mix.file_type();
            assert_eq!(Mix::ALL.iter().position(|other| same(&other)), Some(i));
        }
    }
}
