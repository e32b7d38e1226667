//! What a tensor's name says: whether it may be quantised at all, and which rule it falls under.
//!
//! llama.cpp goes by parts of names (`tensor_allows_quantization`, `tensor_get_category` in `src/llama-quant.cpp`), so
//! this does too: `ffn_down` is dense, routed and shared. Left out are the names of architectures that
//! [`super::choose`] refuses.

/// Rules are per category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    TokenEmbd,
    Output,
    /// Values, or keys and values in one: what suffers most.
    AttnV,
    AttnQkv,
    AttnK,
    AttnOutput,
    FfnDown,
    Other,
}

impl Category {
    pub(super) fn of(name: &str) -> Self {
        match name {
            "output.weight" => return Self::Output,
            "token_embd.weight" => return Self::TokenEmbd,
            _ => {}
        }
        const PARTS: [(&str, Category); 8] = [
            ("attn_qkv.weight", Category::AttnQkv),
            ("attn_kv_b.weight", Category::AttnV),
            ("attn_v.weight", Category::AttnV),
            ("attn_k.weight", Category::AttnK),
            ("attn_output.weight", Category::AttnOutput),
            // Before `ffn_down`, as there: a name with both would be one of these.
            ("ffn_up", Category::Other),
            ("ffn_gate", Category::Other),
            ("ffn_down", Category::FfnDown),
        ];
        let found = PARTS.iter().find(|(part, _)| name.contains(part));
        found.map_or(Self::Other, |(_, category)| *category)
    }

    /// Whether the tensor counts among the value projections.
    pub(super) fn is_attn_v(self) -> bool {
        matches!(self, Self::AttnV | Self::AttnQkv)
    }
}

/// Why a tensor keeps its type whatever the mix, if it does. `ggml_dims` are fastest first.
pub(super) fn kept(name: &str, ggml_dims: &[u64]) -> Option<&'static str> {
    // As `ggml_n_dims` counts: ones at the end are no dimensions.
    let n_dims = ggml_dims.iter().rposition(|&n| n != 1).map_or(1, |i| i + 1);
    if n_dims < 2 {
        return Some("one dimension");
    }
    if !name.ends_with("weight") {
        return Some("no weight");
    }
    if name.contains("_norm.weight") {
        return Some("norm");
    }
    if name.contains("ffn_gate_inp.weight") {
        return Some("router");
    }
    None
}

/// The layer of `blk.N.…`.
pub(super) fn layer(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix("blk.")?.split_once('.')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_norms_biases_and_the_router_keep_their_type() {
        for (name, dims, expected) in [
            (
                "blk.3.attn_norm.weight",
                &[6144u64][..],
                Some("one dimension"),
            ),
            (
                "blk.3.attn_q_a.weight",
                &[6144, 1, 1],
                Some("one dimension"),
            ),
            ("blk.3.odd_norm.weight", &[64, 64], Some("norm")),
            ("blk.3.ffn_gate_inp.weight", &[6144, 256], Some("router")),
            ("blk.3.exp_probs_b.bias", &[64, 64], Some("no weight")),
            ("blk.3.indexer.proj.weight", &[6144, 32], None),
            ("blk.3.ffn_gate_exps.weight", &[6144, 2048, 256], None),
        ] {
            assert_eq!(kept(name, dims), expected, "{name}");
        }
    }

    #[test]
    fn categories_go_by_parts_of_names() {
        for (name, expected) in [
            ("token_embd.weight", Category::TokenEmbd),
            ("blk.78.nextn.embed_tokens.weight", Category::Other),
            ("output.weight", Category::Output),
            ("blk.0.attn_output.weight", Category::AttnOutput),
            ("blk.0.attn_kv_b.weight", Category::AttnV),
            ("blk.0.attn_v_b.weight", Category::Other),
            ("blk.0.indexer.attn_k.weight", Category::AttnK),
            ("blk.0.ffn_down_shexp.weight", Category::FfnDown),
            ("blk.0.ffn_gate_up_exps.weight", Category::Other),
        ] {
            assert_eq!(Category::of(name), expected, "{name}");
        }
    }

    #[test]
    fn layers_are_read_from_names() {
        assert_eq!(layer("blk.78.attn_q_a.weight"), Some(78));
        assert_eq!(layer("output.weight"), None);
        assert_eq!(layer("blk.x.y"), None);
    }
}
