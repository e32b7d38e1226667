//! A GGUF file: the container, then the checkpoint in it.

use glim_gguf::{Gguf, Metadata, TensorInfo, Writer};
use glim_model::Checkpoint;
use glim_quant::dequantize;

use crate::assert_named;

/// What the file is called in messages.
const NAME: &str = "fuzz.gguf";
/// Longest tensor that is decoded: more of the same finds nothing new.
const MAX_DECODED: usize = 1 << 16;

/// Opens the bytes as a file, reads all of it, writes it anew, and takes it for a model.
pub(crate) fn gguf(data: &[u8]) {
    let model = match Gguf::from_bytes(NAME, data.to_vec()) {
        Ok(model) => model,
        Err(error) => return assert_named(&error, &[NAME]),
    };
    read_keys(model.metadata());
    for tensor in model.tensors() {
        read_tensor(&model, tensor);
    }
    write_anew(&model);
    checkpoint(model);
}

/// Asks for each key in every way.
fn read_keys(metadata: &Metadata) {
    fn check<T>(key: &str, result: Result<Option<T>, glim_gguf::GgufError>) {
        match result {
            Ok(value) => assert!(value.is_some(), "`{key}` is there and is not found"),
            Err(error) => assert_named(&error, &[NAME]),
        }
    }
    for (key, value) in metadata.iter() {
        assert!(!value.to_string().contains('\n'), "a value is one line");
        check(key, metadata.str(key));
        check(key, metadata.bool(key));
        check(key, metadata.uint(key));
        check(key, metadata.int(key));
        check(key, metadata.float(key));
        check(key, metadata.uints(key));
        check(key, metadata.uint_array(key));
        check(key, metadata.bools(key));
        check(key, metadata.f32s(key));
        check(key, metadata.strings(key));
        if let Ok(Some(strings)) = metadata.strings(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
    }
}

fn read_tensor(model: &Gguf, tensor: &TensorInfo) {
    let bytes = model.data(tensor);
    assert_eq!(bytes.len() as u64, tensor.bytes, "{}", tensor.name);
    let elements: usize = tensor.shape().iter().product();
    assert_eq!(elements as u64, tensor.elements(), "{}", tensor.name);
    let backed = model.extents(tensor);
    let backed: usize = backed.iter().map(|range| range.len()).sum();
    assert_eq!(backed, bytes.len(), "memory has no holes");
    let _touched = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    if tensor.ty.can_decode() && elements <= MAX_DECODED {
        let mut values = vec![0.0; elements];
        let decoded = dequantize(tensor.ty, bytes, &mut values);
        assert_eq!(decoded, Ok(()), "{}", tensor.name);
    }
}

/// What can be read can be written, and reads the same.
fn write_anew(model: &Gguf) {
    let mut writer = Writer::with_metadata(model.metadata().clone());
    for tensor in model.tensors() {
        let bytes = model.data(tensor);
        writer.tensor(&tensor.name, &tensor.ggml_dims, tensor.ty, bytes);
    }
    let bytes = writer.to_bytes(NAME).expect("what was read can be written");
    let again = Gguf::from_bytes(NAME, bytes).expect("what was written can be read");
    assert_eq!(again.tensors().len(), model.tensors().len());
    for (a, b) in again.tensors().iter().zip(model.tensors()) {
        assert_eq!((&a.name, &a.ggml_dims, a.ty), (&b.name, &b.ggml_dims, b.ty));
        assert!(again.data(a) == model.data(b), "{}", a.name);
    }
}

fn checkpoint(model: Gguf) {
    let checkpoint = match Checkpoint::from_gguf(model) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return assert_named(&error, &[NAME]),
    };
    read_checkpoint(&checkpoint, NAME);
}

/// Reads every logical tensor, whatever its stored form; `place` is what messages must name.
pub(crate) fn read_checkpoint(checkpoint: &Checkpoint, place: &str) {
    if let Err(error) = checkpoint.check_loadable() {
        assert_named(&error, &[place]);
    }
    let all = checkpoint.tensors().iter().chain(checkpoint.mtp_tensors());
    for tensor in all {
        match checkpoint.data(tensor) {
            Ok(bytes) => assert_eq!(bytes.len(), tensor.byte_len(), "{}", tensor.name),
            Err(error) => assert_named(&error, &[place]),
        }
    }
}
