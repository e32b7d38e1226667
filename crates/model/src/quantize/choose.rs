//! Which type each tensor gets, and why.
//!
//! The rules are llama.cpp's (`llama_tensor_get_type`, `llama_tensor_get_type_impl`, `tensor_type_fallback`,
//! `tensor_requires_imatrix` in `src/llama-quant.cpp`), for the mixes of [`Mix`] and the architectures in
//! [`Facts::ARCHS`], for which that file knows no exceptions. `tests/golden/mixes.txt` holds what llama.cpp itself chooses.
//!
//! Three things differ, all where llama.cpp drops a wish or stops half-way. `--tensor-type` also counts for float mixes
//! and for copies. A type of `--output-tensor-type` or `--token-embedding-type` whose blocks do not fit falls back, as
//! any other does. And what has no fall-back there (no whole blocks of 32) is F16 here, as newer versions have it.

use std::cmp::Ordering;
use std::fmt;

use glim_gguf::Metadata;
use glim_quant::GgmlType;
use regex::Regex;

use super::category::{self, Category};
use super::{Mix, QuantizeError};
use crate::config::Config;

/// What the rules ask about a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Blocks, those of MTP among them.
    pub n_layers: usize,
    /// Routed experts, 0 without.
    pub n_experts: usize,
    /// Query heads for each key head, in the first layer.
    pub n_gqa: usize,
}

impl Facts {
    /// The architectures whose rules these are.
    pub const ARCHS: [&str; 3] = ["glm-dsa", "deepseek2", "deepseek32"];

    /// From the keys of a file; `origin` names it in messages.
    ///
    /// # Errors
    /// Another architecture, a key that is missing or of the wrong type.
    pub fn of_file(origin: &str, metadata: &Metadata) -> Result<Self, QuantizeError> {
        let Some(arch) = metadata.str("general.architecture")? else {
            return Err(metadata.missing("general.architecture", "a string").into());
        };
        if !Self::ARCHS.contains(&arch) {
            return Err(QuantizeError::Arch {
                origin: origin.to_owned(),
                found: arch.to_owned(),
                supported: Self::ARCHS.join(", "),
            });
        }
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let first = |suffix: &str| -> Result<Option<u64>, QuantizeError> {
            let values = metadata.uints(&format!("{arch}.{suffix}"))?;
            Ok(values.and_then(|values| values.get(0)))
        };
        let needed = |suffix: &str| -> Result<u64, QuantizeError> {
            let missing = || metadata.missing(&format!("{arch}.{suffix}"), "an integer");
            Ok(first(suffix)?.ok_or_else(missing)?)
        };
        let heads = needed("attention.head_count")?;
        let kv_heads = first("attention.head_count_kv")?.unwrap_or(heads);
        Ok(Self {
            n_layers: size(needed("block_count")?),
            n_experts: size(first("expert_count")?.unwrap_or(0)),
            n_gqa: size(heads.checked_div(kv_heads).unwrap_or(0)),
        })
    }

    /// Of a `glm-dsa` file with this configuration that holds its MTP blocks.
    pub fn of_config(config: &Config) -> Self {
        Self {
            n_layers: config.n_layers + config.n_mtp_layers,
            n_experts: config.moe.n_routed_experts,
            // Absorbed attention has one key head.
            n_gqa: config.n_heads,
        }
    }
}

/// What the rules ask about a tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorFacts<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// Dimensions as stored, fastest first.
    pub ggml_dims: &'a [u64],
    /// Its type now.
    pub ty: GgmlType,
}

impl TensorFacts<'_> {
    fn columns(&self) -> u64 {
        self.ggml_dims.first().copied().unwrap_or(1)
    }

    fn fits(&self, ty: GgmlType) -> bool {
        self.columns().is_multiple_of(ty.block_elems() as u64)
    }
}

/// One `--tensor-type PATTERN=TYPE`.
#[derive(Debug, Clone)]
pub struct TypeFor {
    /// Is looked for anywhere in the name.
    pub pattern: Regex,
    /// What a tensor with such a name becomes.
    pub ty: GgmlType,
}

impl TypeFor {
    /// From `PATTERN=TYPE`. The pattern is a regular expression of the `regex` crate.
    ///
    /// # Errors
    /// [`QuantizeError::BadOverride`] for what has no `=`, a broken pattern, or a type that cannot be encoded.
    pub fn parse(text: &str) -> Result<Self, QuantizeError> {
        let bad = |reason: String| QuantizeError::BadOverride {
            text: text.to_owned(),
            reason,
        };
        let Some((pattern, ty)) = text.rsplit_once('=') else {
            return Err(bad("it has no `=`".to_owned()));
        };
        if pattern.is_empty() {
            return Err(bad("the pattern is empty".to_owned()));
        }
        let Some(ty) = GgmlType::from_name(ty).filter(|ty| ty.can_encode()) else {
            return Err(bad(format!("`{ty}` is no type that glim can encode")));
        };
        // The crate's messages draw the pattern over several lines; the last says what is wrong.
        let reason = |error: &regex::Error| {
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim().to_owned()
        };
        let pattern = Regex::new(pattern).map_err(|error| bad(reason(&error)))?;
        Ok(Self { pattern, ty })
    }
}

/// What the user wants.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The mix; without one every tensor keeps its type.
    pub mix: Option<Mix>,
    /// The mix's type for all: no better types for those that matter more.
    pub pure: bool,
    /// The type of `output.weight`, or of the embedding table that serves as one.
    pub output: Option<GgmlType>,
    /// The type of `token_embd.weight`.
    pub token_embedding: Option<GgmlType>,
    /// Types by name; the first that matches counts, before the mix's own rules.
    pub types: Vec<TypeFor>,
    /// There is an importance matrix: some rules ask.
    pub has_imatrix: bool,
}

/// A tensor's type, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The type.
    pub ty: GgmlType,
    /// The rule that chose it.
    pub why: Why,
    /// What the rule wanted, if the tensor's rows are no whole blocks of it.
    pub fallback_from: Option<GgmlType>,
    /// Encoding it without an importance matrix makes garbage.
    pub needs_imatrix: bool,
}

/// Which rule chose a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Such tensors are not quantised.
    Kept(&'static str),
    /// No mix was asked for.
    Copied,
    /// The mix's type.
    Mix,
    /// The mix gives such tensors another type.
    Rule(&'static str),
    /// An option names this very tensor.
    Option(&'static str),
    /// `--tensor-type` with this pattern.
    Pattern(String),
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Kept(what) => write!(f, "kept: {what}")?,
            Why::Copied => f.write_str("copied")?,
            Why::Mix => f.write_str("the mix's type")?,
            Why::Rule(rule) => f.write_str(rule)?,
            Why::Option(option) => f.write_str(option)?,
            Why::Pattern(pattern) => write!(f, "--tensor-type {pattern}")?,
        }
        match self.fallback_from {
            Some(wanted) => write!(f, "; rows are no whole blocks of {}", wanted.name()),
            None => Ok(()),
        }
    }
}

/// The type of every tensor of a model, in the order of `tensors`.
///
/// Some rules count tensors, so all of a model's must be there (those of all parts of a split file).
///
/// # Errors
/// [`QuantizeError::NoLayer`] for a tensor of a model with experts whose layer the rules ask for and whose name does not
/// say it, or says one that the model does not have.
pub fn choose(
    facts: &Facts,
    tensors: &[TensorFacts<'_>],
    options: &Options,
) -> Result<Vec<Choice>, QuantizeError> {
    let is = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    let mut counters = Counters {
        tied: !is("output.weight"),
        n_attn_v: tensors
            .iter()
            .filter(|tensor| Category::of(tensor.name).is_attn_v())
            .count(),
        ..Counters::default()
    };
    // What is counted is counted in llama.cpp's order, not in that of the file.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| llama_order(tensors[a].name, tensors[b].name));
    let mut choices = vec![None; tensors.len()];
    for index in order {
        let tensor = &tensors[index];
        choices[index] = Some(choose_one(facts, tensor, options, &mut counters)?);
    }
    Ok(choices.into_iter().flatten().collect())
}

/// llama.cpp's order of tensors: what belongs to no layer, then by layer, then by name (`weight_name_comparer` in
/// `src/llama-model-loader.h`).
fn llama_order(a: &str, b: &str) -> Ordering {
    (category::layer(a), a).cmp(&(category::layer(b), b))
}

/// What llama.cpp counts while it goes through the tensors.
#[derive(Debug, Default)]
struct Counters {
    /// The embedding table is the output head too.
    tied: bool,
    n_attn_v: usize,
    i_attn_v: usize,
    i_ffn_down: usize,
}

fn choose_one(
    facts: &Facts,
    tensor: &TensorFacts<'_>,
    options: &Options,
    counters: &mut Counters,
) -> Result<Choice, QuantizeError> {
    if let Some(what) = category::kept(tensor.name, tensor.ggml_dims) {
        return Ok(Choice {
            ty: tensor.ty,
            why: Why::Kept(what),
            fallback_from: None,
            needs_imatrix: false,
        });
    }
    let category = Category::of(tensor.name);
    let (wanted, why) = wanted(facts, tensor, category, options, counters)?;
    let ty = match why {
        Why::Copied => wanted,
        _ => fitting(tensor, wanted),
    };
    let is_table = matches!(category, Category::TokenEmbd | Category::Output);
    Ok(Choice {
        ty,
        why,
        fallback_from: (ty != wanted).then_some(wanted),
        needs_imatrix: options.mix == Some(Mix::Q2_K_S) && ty == GgmlType::Q2_K && !is_table,
    })
}

fn wanted(
    facts: &Facts,
    tensor: &TensorFacts<'_>,
    category: Category,
    options: &Options,
    counters: &mut Counters,
) -> Result<(GgmlType, Why), QuantizeError> {
    let named = match category {
        Category::TokenEmbd => options
            .token_embedding
            .map(|ty| (ty, "--token-embedding-type")),
        Category::Output => options.output.map(|ty| (ty, "--output-tensor-type")),
        _ => None,
    };
    if let Some((ty, option)) = named {
        return Ok((ty, Why::Option(option)));
    }
    if let Some(found) = options
        .types
        .iter()
        .find(|entry| entry.pattern.is_match(tensor.name))
    {
        let pattern = found.pattern.as_str().to_owned();
        return Ok((found.ty, Why::Pattern(pattern)));
    }
    let Some(mix) = options.mix else {
        return Ok((tensor.ty, Why::Copied));
    };
    let is_float = matches!(mix, Mix::F32 | Mix::F16 | Mix::BF16);
    if is_float || options.pure {
        return Ok((mix.default_type(), Why::Mix));
    }
    let is_output =
        category == Category::Output || (counters.tied && category == Category::TokenEmbd);
    if let Some(ty) = options.output.filter(|_| is_output) {
        return Ok((ty, Why::Option("--output-tensor-type")));
    }
    let better = if is_output {
        output(mix, tensor)
    } else if mix == Mix::MXFP4 {
        Some(mxfp4(tensor))
    } else {
        match category {
            Category::AttnV | Category::AttnQkv => attn_v(mix, facts, counters),
            Category::AttnK => {
                (facts.n_experts == 8).then_some((GgmlType::Q8_0, "attention keys, 8 experts"))
            }
            Category::FfnDown => {
                let at = ffn_down_layer(facts, tensor, counters)?;
                ffn_down(mix, at, facts.n_layers, options.has_imatrix)
            }
            Category::AttnOutput => attn_output(mix, facts),
            Category::TokenEmbd | Category::Output | Category::Other => None,
        }
    };
    Ok(match better {
        Some((ty, rule)) if ty != mix.default_type() => (ty, Why::Rule(rule)),
        _ => (mix.default_type(), Why::Mix),
    })
}

/// A type other than the mix's, and the rule's name.
type Better = Option<(GgmlType, &'static str)>;

fn output(mix: Mix, tensor: &TensorFacts<'_>) -> Better {
    let default = mix.default_type();
    if mix == Mix::MXFP4 || !tensor.fits(default) {
        Some((GgmlType::Q8_0, "output head"))
    } else if default != GgmlType::Q8_0 {
        Some((GgmlType::Q6_K, "output head"))
    } else {
        None
    }
}

/// Not the experts alone: `attn_k_b` and `attn_v_b` have a matrix for each head.
fn mxfp4(tensor: &TensorFacts<'_>) -> (GgmlType, &'static str) {
    if tensor.ggml_dims.get(2).is_some_and(|&n| n > 1) {
        (GgmlType::MXFP4, "three dimensions")
    } else {
        (GgmlType::Q8_0, "two dimensions")
    }
}

fn attn_v(mix: Mix, facts: &Facts, counters: &mut Counters) -> Better {
    let (i, n) = (counters.i_attn_v, counters.n_attn_v);
    counters.i_attn_v += 1;
    if facts.n_experts == 8 {
        return Some((GgmlType::Q8_0, "attention values, 8 experts"));
    }
    let shared = facts.n_gqa >= 4;
    let ty = match mix {
        Mix::Q2_K if shared => GgmlType::Q4_K,
        Mix::Q2_K => GgmlType::Q3_K,
        Mix::Q2_K_S if shared => GgmlType::Q4_K,
        Mix::Q3_K_M if i < 2 => GgmlType::Q5_K,
        Mix::Q3_K_M => GgmlType::Q4_K,
        Mix::Q3_K_L => GgmlType::Q5_K,
        Mix::IQ4_NL | Mix::IQ4_XS if shared => GgmlType::Q5_K,
        Mix::Q4_K_M | Mix::Q5_K_M if more_bits(i, n) => GgmlType::Q6_K,
        Mix::Q4_K_S if i < 4 => GgmlType::Q5_K,
        _ => return None,
    };
    Some((ty, "attention values"))
}

fn attn_output(mix: Mix, facts: &Facts) -> Better {
    let ty = if facts.n_experts == 8 {
        match mix {
            Mix::Q2_K
            | Mix::Q3_K_S
            | Mix::Q3_K_M
            | Mix::Q4_K_S
            | Mix::Q4_K_M
            | Mix::IQ4_NL
            | Mix::IQ4_XS => GgmlType::Q5_K,
            _ => return None,
        }
    } else {
        match mix {
            Mix::Q2_K => GgmlType::Q3_K,
            Mix::Q3_K_M => GgmlType::Q4_K,
            Mix::Q3_K_L => GgmlType::Q5_K,
            _ => return None,
        }
    };
    Some((ty, "attention output"))
}

/// Dense, routed and shared alike.
fn ffn_down(mix: Mix, layer: usize, n_layers: usize, has_imatrix: bool) -> Better {
    let first_eighth = layer < n_layers / 8;
    Some(match mix {
        Mix::Q2_K => (GgmlType::Q3_K, "ffn_down"),
        Mix::Q2_K_S if first_eighth => (GgmlType::Q4_K, "ffn_down, first eighth"),
        Mix::Q3_K_M if layer < n_layers / 16 => (GgmlType::Q5_K, "ffn_down, first sixteenth"),
        Mix::Q3_K_M => (GgmlType::Q4_K, "ffn_down"),
        Mix::Q3_K_L => (GgmlType::Q5_K, "ffn_down"),
        Mix::Q4_K_M | Mix::Q5_K_M if more_bits(layer, n_layers) => {
            (GgmlType::Q6_K, "ffn_down, ends and every third")
        }
        Mix::IQ4_NL | Mix::IQ4_XS if first_eighth && !has_imatrix => {
            (GgmlType::Q5_K, "ffn_down, first eighth")
        }
        Mix::Q4_K_S if first_eighth => (GgmlType::Q5_K, "ffn_down, first eighth"),
        Mix::Q4_0 if first_eighth && has_imatrix => (GgmlType::Q4_1, "ffn_down, first eighth"),
        Mix::Q5_0 if first_eighth && has_imatrix => (GgmlType::Q5_1, "ffn_down, first eighth"),
        _ => return None,
    })
}

/// The first and the last eighth, and of the rest every third (`use_more_bits`).
fn more_bits(i: usize, n: usize) -> bool {
    let eighth = n / 8;
    // `7 * n / 8` there; a hostile file's `n` may be any.
    i < eighth || i >= n - n.div_ceil(8) || (i - eighth) % 3 == 2
}

/// With experts the layer that the name says; without, how many came before.
fn ffn_down_layer(
    facts: &Facts,
    tensor: &TensorFacts<'_>,
    counters: &mut Counters,
) -> Result<usize, QuantizeError> {
    let counted = counters.i_ffn_down;
    counters.i_ffn_down += 1;
    if facts.n_experts <= 1 {
        return Ok(counted);
    }
    let layer = category::layer(tensor.name).filter(|layer| *layer < facts.n_layers);
    layer.ok_or_else(|| QuantizeError::NoLayer {
        tensor: tensor.name.to_owned(),
        n_layers: facts.n_layers,
    })
}

/// `wanted`, or what stands in for it where the rows are no whole blocks.
fn fitting(tensor: &TensorFacts<'_>, wanted: GgmlType) -> GgmlType {
    if tensor.fits(wanted) {
        return wanted;
    }
    let smaller_blocks = match wanted {
        GgmlType::IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::TQ1_0 | GgmlType::TQ2_0 => GgmlType::Q4_0,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        _ => GgmlType::F16,
    };
    if tensor.fits(smaller_blocks) {
        smaller_blocks
    } else {
        GgmlType::F16
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn check(options: &Options, facts: Facts, name: &str, dims: &[u64], expected: (&str, &str)) {
        let tensors = [name, "output.weight"].map(|name| TensorFacts {
            name,
            ggml_dims: dims,
            ty: GgmlType::BF16,
        });
        let choice = &choose(&facts, &tensors, options).unwrap()[0];
        let found = (choice.ty.name(), choice.to_string());
        assert_eq!((found.0, found.1.as_str()), expected, "{name}");
    }

    const FACTS: Facts = Facts {
        n_layers: 79,
        n_experts: 256,
        n_gqa: 64,
    };

    fn of(mix: Mix) -> Options {
        Options {
            mix: Some(mix),
            ..Options::default()
        }
    }

    #[test]
    fn rows_that_are_no_whole_blocks_fall_back() {
        let (k_b, name) = ([192, 512, 64], "blk.0.attn_k_b.weight");
        for (mix, expected) in [
            (
                Mix::Q4_K_M,
                ("Q5_0", "the mix's type; rows are no whole blocks of Q4_K"),
            ),
            (
                Mix::Q5_K_M,
                ("Q5_1", "the mix's type; rows are no whole blocks of Q5_K"),
            ),
            (
                Mix::Q6_K,
                ("Q8_0", "the mix's type; rows are no whole blocks of Q6_K"),
            ),
            (
                Mix::Q2_K,
                ("Q4_0", "the mix's type; rows are no whole blocks of Q2_K"),
            ),
            (
                Mix::IQ4_XS,
                (
                    "IQ4_NL",
                    "the mix's type; rows are no whole blocks of IQ4_XS",
                ),
            ),
            (Mix::MXFP4, ("MXFP4", "the mix's type")),
        ] {
            check(&of(mix), FACTS, name, &k_b, expected);
        }
        let odd = ("F16", "the mix's type; rows are no whole blocks of Q8_0");
        check(&of(Mix::Q8_0), FACTS, name, &[48, 512, 64], odd);
    }

    #[test]
    fn options_come_before_patterns_and_patterns_before_the_mix() {
        let mut options = of(Mix::Q4_K_M);
        options.types = vec![
            TypeFor::parse(r"ffn_.*_exps=iq4_xs").unwrap(),
            TypeFor::parse("blk.3.ffn=q8_0").unwrap(),
            TypeFor::parse("token_embd=q8_0").unwrap(),
        ];
        options.token_embedding = Some(GgmlType::Q5_K);
        let dims = [2048, 6144, 256];
        for (name, expected) in [
            (
                "blk.3.ffn_down_exps.weight",
                ("IQ4_XS", "--tensor-type ffn_.*_exps"),
            ),
            (
                "blk.3.ffn_down_shexp.weight",
                ("Q8_0", "--tensor-type blk.3.ffn"),
            ),
            ("token_embd.weight", ("Q5_K", "--token-embedding-type")),
            (
                "blk.4.ffn_down_shexp.weight",
                ("Q6_K", "ffn_down, ends and every third"),
            ),
        ] {
            check(&options, FACTS, name, &dims, expected);
        }
    }

    #[test]
    fn without_a_mix_only_named_tensors_change() {
        let options = Options {
            types: vec![TypeFor::parse("attn_q_b=q8_0").unwrap()],
            ..Options::default()
        };
        let dims = [2048, 16384];
        let copied = ("BF16", "copied");
        check(&options, FACTS, "blk.0.attn_q_a.weight", &dims, copied);
        let named = ("Q8_0", "--tensor-type attn_q_b");
        check(&options, FACTS, "blk.0.attn_q_b.weight", &dims, named);
    }

    #[test]
    fn pure_gives_all_the_same_type() {
        let options = Options {
            pure: true,
            ..of(Mix::Q4_K_M)
        };
        let name = "blk.0.ffn_down_exps.weight";
        let expected = ("Q4_K", "the mix's type");
        check(&options, FACTS, name, &[2048, 6144, 256], expected);
    }

    #[test]
    fn an_embedding_table_without_output_is_the_output() {
        let tensor = TensorFacts {
            name: "token_embd.weight",
            ggml_dims: &[6144, 154_880],
            ty: GgmlType::BF16,
        };
        let choice = &choose(&FACTS, &[tensor], &of(Mix::Q4_K_M)).unwrap()[0];
        assert_eq!(choice.ty, GgmlType::Q6_K);
        assert_eq!(choice.to_string(), "output head");
    }

    #[test]
    fn q2_k_s_needs_an_importance_matrix_but_for_the_tables() {
        let tensors = [
            "blk.0.attn_q_b.weight",
            "token_embd.weight",
            "output.weight",
        ]
        .map(|name| TensorFacts {
            name,
            ggml_dims: &[2048, 256],
            ty: GgmlType::BF16,
        });
        let choices = choose(&FACTS, &tensors, &of(Mix::Q2_K_S)).unwrap();
        let needs: Vec<bool> = choices.iter().map(|choice| choice.needs_imatrix).collect();
        assert_eq!(needs, [true, false, false]);
    }

    #[test]
    fn more_bits_are_for_the_ends_and_every_third_of_any_number_of_layers() {
        for n in 0..200usize {
            for i in 0..n {
                let there = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
                assert_eq!(more_bits(i, n), there, "layer {i} of {n}");
            }
        }
        assert!(more_bits(usize::MAX - 1, usize::MAX));
    }

    #[test]
    fn a_layer_that_the_model_does_not_have_is_named() {
        let tensor = TensorFacts {
            name: "blk.79.ffn_down.weight",
            ggml_dims: &[2048, 256],
            ty: GgmlType::BF16,
        };
        let error = choose(&FACTS, &[tensor], &of(Mix::Q4_K_M)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "tensor `blk.79.ffn_down.weight`: expected a name that begins with `blk.N.`, N below 79"
        );
    }

    #[test]
    fn an_override_that_cannot_be_meant_is_refused() {
        for (text, expected) in [
            (
                "attn_q",
                "--tensor-type `attn_q`: it has no `=`; expected PATTERN=TYPE",
            ),
            (
                "=q8_0",
                "--tensor-type `=q8_0`: the pattern is empty; expected PATTERN=TYPE",
            ),
            (
                "a=iq2_xxs",
                "--tensor-type `a=iq2_xxs`: `iq2_xxs` is no type that glim can encode; expected PATTERN=TYPE",
            ),
            (
                "(=q8_0",
                "--tensor-type `(=q8_0`: error: unclosed group; expected PATTERN=TYPE",
            ),
        ] {
            assert_eq!(TypeFor::parse(text).unwrap_err().to_string(), expected);
        }
    }
}
