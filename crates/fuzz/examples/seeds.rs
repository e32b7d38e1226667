//! Writes the seeds of the corpora that are made, not found: sound little files that lead a fuzzer past the first checks.
//!
//! `cargo run -p glim-fuzz --example seeds` writes `fuzz/corpus/TARGET/tiny*`; the same bytes each time.

use std::path::Path;

use glim_gguf::{Array, Gguf, Metadata, Strings, Value, Writer};
use glim_quant::GgmlType;
use glim_testkit::assets;
use glim_testkit::hf::{TinyHf, safetensors_bytes};
use glim_testkit::tiny::{Dims, Tiny};
use serde_json::{Value as Json, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Two layers, one of each kind, as narrow as a layer can be.
fn dims() -> Dims {
    Dims {
        first_dense_layers: 1,
        mtp: true,
        hidden_size: 6,
        vocab_size: 5,
        n_heads: 2,
        q_lora_rank: 4,
        kv_lora_rank: 3,
        qk_nope_head_dim: 3,
        qk_rope_head_dim: 2,
        v_head_dim: 5,
        intermediate_size: 7,
        n_routed_experts: 3,
        num_experts_per_tok: 2,
        n_shared_experts: 1,
        moe_intermediate_size: 4,
        index_n_heads: 3,
        index_head_dim: 2,
        index_topk: 4,
        full: vec![true, false],
    }
}

fn main() -> Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let put = |target: &str, name: &str, bytes: &[u8]| -> Result<()> {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join(name), bytes)?)
    };

    let tiny = || Tiny::new(1).dims(dims()).build();
    put("gguf", "tiny", &tiny().bytes())?;
    put("gguf", "tiny-kv_b", &tiny().legacy_kv_b().bytes())?;
    put(
        "gguf",
        "tiny-fused",
        &tiny().fuse_gate_up().flat_kv_b().bytes(),
    )?;
    put("gguf", "tiny-values", &every_value()?)?;

    let hf = TinyHf::from_gguf(&tiny());
    put("safetensors", "tiny", &safetensors_bytes(&hf.tensors))?;
    let hf = hf.fp8("self_attn.q_a_proj.weight");
    let dir = tempfile::tempdir()?;
    hf.write(dir.path(), 1);
    let weights = std::fs::read(dir.path().join("model.safetensors"))?;
    put("safetensors", "tiny-fp8", &weights)?;
    let field = |(key, json): &(String, String)| format!("\"{key}\":{json}");
    let config: Vec<String> = hf.config.iter().map(field).collect();
    put(
        "hf_config",
        "tiny.json",
        format!("{{{}}}", config.join(",")).as_bytes(),
    )?;
    put(
        "safetensors_index",
        "tiny.json",
        br#"{"metadata":{"total_size":8},"weight_map":{"model.norm.weight":"model-00001-of-00002.safetensors","lm_head.weight":"model-00002-of-00002.safetensors"}}"#,
    )?;

    let (metadata, json) = tokenizer()?;
    put(
        "tokenizer_gguf",
        "tiny",
        &Writer::with_metadata(metadata).to_bytes("seed")?,
    )?;
    put("tokenizer_json", "tiny.json", json.to_string().as_bytes())?;
    let template = std::fs::read(assets::odd_glm52().join("chat_template.jinja"))?;
    put("chat_template", "tiny-glm", &template)?;
    let schema = json!({"$defs": {"Kind": {"enum": ["a", "b\"", null]}, "Node": {"type": "object", "properties": {
        "id": {"type": "integer", "minimum": 1, "maximum": 99}, "kind": {"$ref": "#/$defs/Kind"},
        "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8}, "day": {"type": "string", "format": "date"},
        "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}, "list": {"type": "array", "prefixItems": [{"type": "number"}], "items": {"type": "boolean"}}},
        "required": ["id"], "additionalProperties": false}},
        "type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}, "n": {"oneOf": [{"type": "integer"}, {"type": "string"}]}}, "required": ["root"]});
    put("schema", "tiny.json", schema.to_string().as_bytes())?;
    put(
        "stop_strings",
        "tiny",
        "abc\nab\n\u{e9}\n\nxa\u{e9}b abc".as_bytes(),
    )?;
    Ok(())
}

/// A value of every kind, and tensors of several types.
fn every_value() -> Result<Vec<u8>> {
    let mut writer = Writer::new();
    writer.set("general.alignment", 8u32);
    writer.set("u8", 1u8);
    writer.set("i8", -1i8);
    writer.set("i64", -5i64);
    writer.set("u64", u64::MAX);
    writer.set("f32", 0.5f32);
    writer.set("f64", f64::NAN);
    writer.set("bool", true);
    writer.set("bools", Value::Array(Array::Bool(vec![true, false])));
    writer.set("u16s", vec![1u16, 2, 3]);
    writer.set("f32s", vec![0.25f32; 5]);
    writer.set(
        "texts",
        Value::from(["\u{e9}", "", "token"].into_iter().collect::<Strings>()),
    );
    for ty in [
        GgmlType::Q8_0,
        GgmlType::Q4_K,
        GgmlType::MXFP4,
        GgmlType::I16,
    ] {
        let bytes = vec![7; 2 * ty.block_bytes()];
        writer.tensor(ty.name(), &[ty.block_elems() as u64, 2], ty, bytes);
    }
    Ok(writer.to_bytes("seed")?)
}

/// The built-in model's bytes, first merges and special tokens, as keys and as `tokenizer.json`.
fn tokenizer() -> Result<(Metadata, Json)> {
    const MERGES: usize = 40;
    let model = Gguf::open(&assets::tiny_glm5())?;
    let all = model.metadata();
    let (Some(texts), Some(types), Some(merges)) = (
        all.strings("tokenizer.ggml.tokens")?,
        all.uint_array("tokenizer.ggml.token_type")?,
        all.strings("tokenizer.ggml.merges")?,
    ) else {
        return Err("the built-in model has no tokenizer".into());
    };
    let merges: Vec<&str> = merges.iter().take(MERGES).collect();
    let made: Vec<String> = merges.iter().map(|merge| merge.replace(' ', "")).collect();
    let wanted = |text: &str, ty: u64| {
        ty != 1 || text.chars().count() == 1 || made.iter().any(|m| m == text)
    };
    let tokens: Vec<(&str, u64)> = texts
        .iter()
        .zip(types)
        .filter(|&(text, ty)| ty != 5 && wanted(text, ty))
        .collect();
    let (normal, added): (Vec<_>, Vec<_>) = (0..).zip(&tokens).partition(|(_, (_, ty))| *ty == 1);

    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", "glm4");
    let texts: Strings = tokens.iter().map(|(text, _)| *text).collect();
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(texts)));
    let types = tokens.iter().map(|&(_, ty)| ty as i32).collect();
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(types)));
    let pairs: Strings = merges.iter().collect();
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(pairs)));
    metadata.set("tokenizer.ggml.eos_token_id", tokens.len() as u32 - 1);
    metadata.set(
        "tokenizer.chat_template",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    );

    let source: Json =
        serde_json::from_slice(&std::fs::read(assets::odd_glm52().join("tokenizer.json"))?)?;
    let vocab: serde_json::Map<String, Json> = normal
        .iter()
        .map(|(id, (text, _))| ((*text).to_owned(), json!(id)))
        .collect();
    let added: Vec<Json> = added
        .iter()
        .map(|(id, (text, ty))| json!({"id": id, "content": text, "special": *ty == 3}))
        .collect();
    let pairs: Vec<Json> = merges
        .iter()
        .filter_map(|merge| merge.split_once(' '))
        .map(|pair| json!([pair.0, pair.1]))
        .collect();
    let json = json!({
        "pre_tokenizer": source["pre_tokenizer"],
        "added_tokens": added,
        "model": {"type": "BPE", "vocab": vocab, "merges": pairs},
    });
    Ok((metadata, json))
}
