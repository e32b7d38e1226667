//! `glim inspect`.

use glim_testkit::assets;

use glim_plan::GgmlType;

use super::models::{self, Changes};
use super::{glim, text};

#[test]
fn the_built_in_model() {
    insta::assert_snapshot!(glim(&["inspect"]).ok());
}

#[test]
fn tensors_are_listed_in_both_shape_conventions() {
    let page = glim(&["inspect", "--tensors"]).ok();
    let line = page
        .lines()
        .find(|line| line.contains("blk.0.attn_k_b.weight"))
        .unwrap();
    assert!(
        line.contains("[8, 128, 96]") && line.contains("[96, 128, 8]"),
        "{line}"
    );
}

#[test]
fn json_has_the_fields_that_scripts_rely_on() {
    let json = glim(&["inspect", "--json"]).json();
    assert_eq!(json["metadata"]["general.architecture"], "glm-dsa");
    assert_eq!(
        json["metadata"]["glm-dsa.attention.layer_norm_rms_epsilon"],
        1e-5
    );
    let tensors = json["tensors"].as_array().unwrap();
    let tensor = tensors
        .iter()
        .find(|t| t["name"] == "blk.0.attn_k_b.weight")
        .unwrap();
    assert_eq!(tensor["ggml_dims"], serde_json::json!([96, 128, 8]));
    assert_eq!(tensor["shape"], serde_json::json!([8, 128, 96]));
    assert_eq!(
        (&tensor["type"], &tensor["bytes"]),
        (&"Q8_0".into(), &(8 * 128 * 96 / 32 * 34).into())
    );
    assert!(tensor["offset"].is_u64(), "{tensor}");
    assert!(json["oddities"].is_array());
    assert_eq!(
        json["architecture"]["hyper_parameters"]["kv_lora_rank"],
        128
    );
    assert_eq!(
        json["architecture"]["cache_bytes_per_token"]["latent"],
        6 * 160 * 4
    );
    assert_eq!(
        json["architecture"]["cache_bytes_per_token"]["index_key"],
        6 * 64 * 4
    );
}

#[test]
fn offsets_count_from_the_beginning_of_the_file() {
    let path = assets::tiny_glm5();
    let json = glim(&["inspect", text(&path), "--json"]).json();
    let tensors = json["tensors"].as_array().unwrap();
    let tensor = tensors
        .iter()
        .find(|t| t["name"] == "output_norm.weight")
        .unwrap();
    let offset = tensor["offset"].as_u64().unwrap() as usize;
    let gguf = glim_gguf::Gguf::open(&path).unwrap();
    let expected = gguf.data(gguf.tensor("output_norm.weight").unwrap());
    assert_eq!(
        &std::fs::read(&path).unwrap()[offset..][..expected.len()],
        expected
    );
}

#[test]
fn plans_are_printed_with_their_cost() {
    let page = glim(&["inspect", "--plan"]).ok();
    for word in [
        "plan ",
        "decode 1 rows",
        "prefill 256 tokens",
        "MlaAttend(",
        "cost of one step of 1 rows",
    ] {
        assert!(page.contains(word), "{word}");
    }
    let one = glim(&["inspect", "--plan=decode:8", "--json"]).json();
    let plans = one["plans"].as_array().unwrap();
    assert_eq!(
        (plans.len(), &plans[0]["step"]),
        (1, &"decode 8 rows".into())
    );
    assert!(
        plans[0]["cost"]["weight_bytes"].as_f64() > Some(1e6),
        "{}",
        plans[0]["cost"]
    );
}

#[test]
fn a_hugging_face_folder() {
    let folder = assets::odd_glm52();
    let page = glim(&["inspect", text(&folder)]).ok();
    for word in [
        "Hugging Face folder",
        "model_type = \"glm_moe_dsa\"",
        "indexer_shared_layers",
        "BF16",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let json = glim(&["inspect", text(&folder), "--json"]).json();
    assert_eq!(json["metadata"]["model_type"], "glm_moe_dsa");
    assert!(
        json["tensors"]
            .as_array()
            .is_some_and(|tensors| !tensors.is_empty())
    );
}

#[test]
fn a_mix_of_types_is_summed_up() {
    const ELEMENTS: usize = 8 * 256 * 256;
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![0; GgmlType::IQ2_XS.row_bytes(ELEMENTS).unwrap()];
    let tensor = ("blk.1.ffn_down_exps.weight", GgmlType::IQ2_XS, bytes);
    let path = models::variant(
        dir.path(),
        "mixed.gguf",
        &Changes {
            tensors: vec![tensor],
            ..Changes::default()
        },
    );
    let json = glim(&["inspect", text(&path), "--json"]).json();
    let types = json["types"].as_array().unwrap();
    let low_bit = types
        .iter()
        .find(|share| share["type"] == "IQ2_XS")
        .unwrap();
    assert_eq!(low_bit["tensors"], 1);
    assert_eq!(low_bit["params"], ELEMENTS);
    assert_eq!(low_bit["bytes"], ELEMENTS / 256 * 74);
    assert!(
        glim(&["inspect", text(&path)])
            .ok()
            .contains("IQ2_XS       1 tensors")
    );
}

#[test]
fn memory_of_each_rank_and_the_context_that_fits() {
    let page = glim(&["inspect", "--tp", "4", "--memory", "20M"]).ok();
    let at = page.find("Memory at a context").unwrap();
    let end = page[at..].find("\n\n").map_or(page.len(), |n| at + n);
    insta::assert_snapshot!(&page[at..end]);

    let json = glim(&["inspect", "--tp", "4", "--memory", "20M", "--json"]).json();
    let memory = &json["architecture"]["memory"];
    let ranks = memory["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 4);
    let alone = glim(&["inspect", "--json"]).json();
    let alone = &alone["architecture"]["memory"]["ranks"][0];
    let weights: u64 = ranks
        .iter()
        .map(|rank| rank["weights_bytes"].as_u64().unwrap())
        .sum();
    let whole = alone["weights_bytes"].as_u64().unwrap();
    assert!(
        whole < weights && weights < 4 * whole,
        "{weights} of {whole}"
    );
    // The caches are every rank's.
    assert_eq!(ranks[3]["latent_cache_bytes"], alone["latent_cache_bytes"]);

    // What is said to fit does, and one block more does not.
    let context = memory["fits"]["context"].as_u64().unwrap();
    let total = |context: u64| {
        let context = context.to_string();
        let json = glim(&["inspect", "--tp", "4", "--context", &context, "--json"]).json();
        json["architecture"]["memory"]["total_bytes"]
            .as_u64()
            .unwrap()
    };
    assert!(total(context) <= 20_000_000 && total(context + 64) > 20_000_000);
    let none = glim(&["inspect", "--memory", "1M"]).ok();
    assert!(none.contains("do not hold the weights"), "{none}");
    glim(&["inspect", "--tp", "3"]).fails(64, &["8 heads cannot be divided among 3 ranks"]);
}
