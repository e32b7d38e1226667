//! The files of a Hugging Face folder, one of them hostile, the others sound.

use std::path::Path;

use glim_model::Checkpoint;
use glim_model::catalogue::{catalogue, mtp_catalogue};
use glim_model::checkpoint::HfFolder;

use crate::gguf::read_checkpoint;
use crate::{assert_named, in_folder};

/// A model of two layers, with the sizes of the seeds in `fuzz/corpus/safetensors`.
pub(crate) const CONFIG: &[u8] = include_bytes!("../../../fuzz/corpus/hf_config/tiny.json");
/// The parts of the index in `fuzz/corpus/safetensors_index`: two files with a tensor each.
const PARTS: [(&str, &str); 2] = [
    ("model-00001-of-00002.safetensors", "model.norm.weight"),
    ("model-00002-of-00002.safetensors", "lm_head.weight"),
];

/// Takes the bytes for `model.safetensors`.
pub(crate) fn safetensors(data: &[u8]) {
    let files = [("config.json", CONFIG), ("model.safetensors", data)];
    in_folder(&files, open);
}

/// Takes the bytes for `model.safetensors.index.json`.
pub(crate) fn index(data: &[u8]) {
    let parts = PARTS.map(|(_, tensor)| one_tensor(tensor));
    let files = [
        ("config.json", CONFIG),
        ("model.safetensors.index.json", data),
        (PARTS[0].0, &parts[0]),
        (PARTS[1].0, &parts[1]),
    ];
    in_folder(&files, open);
}

/// Takes the bytes for `config.json`.
pub(crate) fn config(data: &[u8]) {
    let weights = one_tensor(PARTS[0].1);
    let files = [("config.json", data), ("model.safetensors", &weights)];
    in_folder(&files, open);
}

fn open(path: &Path) {
    let place = path.display().to_string();
    match HfFolder::open(path) {
        Ok(folder) => read_folder(&folder, &place),
        Err(error) => assert_named(&error, &[&place]),
    }
    match Checkpoint::open(path) {
        Ok(checkpoint) => read_checkpoint(&checkpoint, &place),
        Err(error) => assert_named(&error, &[&place]),
    }
}

fn read_folder(folder: &HfFolder, place: &str) {
    for tensor in folder.tensors() {
        let bytes = folder.data(tensor);
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(
            Some(bytes.len()),
            tensor.ty.row_bytes(elements),
            "{}",
            tensor.name
        );
        let _touched = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    }
    match folder.config() {
        Err(error) => assert_named(&error, &[place]),
        Ok(config) => {
            for spec in catalogue(&config).iter().chain(&mtp_catalogue(&config)) {
                let elements = spec
                    .shape
                    .iter()
                    .try_fold(1u64, |n, &dim| n.checked_mul(dim as u64));
                assert_eq!(elements, Some(spec.elements()), "{} overflows", spec.name);
            }
        }
    }
}

/// A safetensors file with one F32 of this name.
fn one_tensor(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &[0; 4]].concat()
}
