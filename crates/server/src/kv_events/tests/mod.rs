//! The publisher against other people's decoder (`rmpv`) and sockets (`zeromq`), and against peers that misbehave.
#![allow(clippy::unwrap_used, reason = "tests")]

mod payload;
mod sockets;

use glim_engine::KvEvent;

/// A hash that is different in its first and its last bytes.
fn hash(n: u8) -> [u8; 32] {
    let mut hash = [n; 32];
    hash[0] = 0xF0;
    hash[31] = n.wrapping_add(1);
    hash
}

/// Two blocks of four tokens after another.
fn stored() -> KvEvent {
    KvEvent::BlockStored {
        hashes: vec![hash(1), hash(2)],
        parent: Some(hash(9)),
        token_ids: vec![0, 1, 127, 128, 255, 256, 70_000, u32::MAX],
        block_size: 4,
    }
}
