//! Both encodings, read by `rmpv`.

use glim_engine::KvEvent;
use rmpv::Value;

use super::super::encode::{Form, KvEncoding, KvHashes};
use super::{hash, stored};

const RANK: u16 = 3;
const SECONDS: f64 = 1_790_000_000.25;

fn decode(encoding: KvEncoding, hashes: KvHashes, events: &[KvEvent]) -> Vec<Value> {
    let form = Form {
        encoding,
        hashes,
        rank: RANK,
    };
    let payload = form.batch(SECONDS, events);
    let mut rest = payload.as_slice();
    let batch = rmpv::decode::read_value(&mut rest).unwrap();
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    let [seconds, Value::Array(events), rank] = batch.as_array().unwrap().as_slice() else {
        panic!("{batch}");
    };
    assert_eq!((seconds, rank), (&SECONDS.into(), &RANK.into()));
    events.clone()
}

/// The last eight bytes as a number.
fn number(n: u8) -> Value {
    u64::from_be_bytes([n, n, n, n, n, n, n, n.wrapping_add(1)]).into()
}

fn tokens() -> Value {
    let ids = [0, 1, 127, 128, 255, 256, 70_000, u32::MAX];
    Value::Array(ids.map(Value::from).to_vec())
}

fn map(fields: &[(&str, Value)]) -> Value {
    let field = |(name, value): &(&str, Value)| (Value::from(*name), value.clone());
    Value::Map(fields.iter().map(field).collect())
}

#[test]
fn maps_with_a_type() {
    let events = [
        stored(),
        KvEvent::BlockRemoved {
            hashes: vec![hash(1)],
        },
        KvEvent::AllBlocksCleared,
    ];
    let expected = [
        map(&[
            ("type", "BlockStored".into()),
            ("block_hashes", Value::Array(vec![number(1), number(2)])),
            ("parent_block_hash", number(9)),
            ("token_ids", tokens()),
            ("block_size", 4.into()),
            ("lora_id", Value::Nil),
            ("medium", "GPU".into()),
            ("lora_name", Value::Nil),
            ("extra_keys", Value::Array(vec![Value::Nil; 2])),
            ("group_idx", 0.into()),
            ("kv_cache_spec_kind", "mla_attention".into()),
            ("kv_cache_spec_sliding_window", Value::Nil),
        ]),
        map(&[
            ("type", "BlockRemoved".into()),
            ("block_hashes", Value::Array(vec![number(1)])),
            ("medium", "GPU".into()),
            ("group_idx", 0.into()),
        ]),
        map(&[("type", "AllBlocksCleared".into())]),
    ];
    let found = decode(KvEncoding::Maps, KvHashes::Integers, &events);
    assert_eq!(found, expected);
}

#[test]
fn arrays_that_begin_with_the_type() {
    let bytes = |n| Value::Binary(hash(n).to_vec());
    let events = [
        stored(),
        KvEvent::BlockRemoved {
            hashes: vec![hash(1)],
        },
        KvEvent::AllBlocksCleared,
    ];
    let expected = [
        Value::Array(vec![
            "BlockStored".into(),
            Value::Array(vec![bytes(1), bytes(2)]),
            bytes(9),
            tokens(),
            4.into(),
            Value::Nil,
            "GPU".into(),
            Value::Nil,
            Value::Array(vec![Value::Nil; 2]),
            0.into(),
            "mla_attention".into(),
            Value::Nil,
        ]),
        Value::Array(vec![
            "BlockRemoved".into(),
            Value::Array(vec![bytes(1)]),
            "GPU".into(),
            0.into(),
        ]),
        Value::Array(vec!["AllBlocksCleared".into()]),
    ];
    let found = decode(KvEncoding::Arrays, KvHashes::Bytes, &events);
    assert_eq!(found, expected);
}

#[test]
fn the_first_block_of_a_sequence_has_no_parent() {
    let event = KvEvent::BlockStored {
        hashes: vec![hash(1)],
        parent: None,
        token_ids: vec![5; 64],
        block_size: 64,
    };
    let found = decode(KvEncoding::Arrays, KvHashes::Integers, &[event]);
    assert_eq!(found[0][2], Value::Nil);
}
