//! Batches of events as msgpack.
//!
//! A batch is an array `[seconds since the epoch, events, data parallel rank]`. An event is a map with a `type` (vLLM from 0.26 on, its
//! pull request 42892), or an array that begins with that word (vLLM before; the positions are those of its struct's fields). Readers
//! accept both by now; maps are what they will go on accepting.

use std::convert::Infallible;

use glim_engine::KvEvent;
use rmp::encode::buffer::ByteBuf;
use rmp::encode::{
    ValueWriteError, write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str,
    write_uint,
};

/// The tier that attention reads from, in vLLM's words; on a machine without one too, since readers know blocks with tokens by it.
const MEDIUM: &str = "GPU";

/// vLLM's name for the kind of cache: latents of multi-head latent attention, each with the indexer's key of its token.
const SPEC_KIND: &str = "mla_attention";

/// All layers are one group, so there is only the first.
const GROUP: u64 = 0;

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvEncoding {
    /// Maps with a `type` key.
    #[default]
    Maps,
    /// Arrays that begin with the type: for readers older than vLLM 0.26.
    Arrays,
}

/// How the hashes of blocks are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvHashes {
    /// The last eight bytes, as a number: what Dynamo needs, and vLLM's default.
    #[default]
    Integers,
    /// All 32 bytes.
    Bytes,
}

/// How a batch is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) encoding: KvEncoding,
    pub(super) hashes: KvHashes,
    pub(super) rank: u16,
}

type Written = Result<(), ValueWriteError<Infallible>>;

impl Form {
    /// The payload of one message.
    pub(super) fn batch(self, seconds: f64, events: &[KvEvent]) -> Vec<u8> {
        let mut out = ByteBuf::new();
        self.write_batch(&mut out, seconds, events)
            .expect("memory can be written");
        out.into_vec()
    }

    fn write_batch(self, out: &mut ByteBuf, seconds: f64, events: &[KvEvent]) -> Written {
        write_array_len(out, 3)?;
        write_f64(out, seconds)?;
        write_array_len(out, length(events.len()))?;
        for event in events {
            self.write_event(out, event)?;
        }
        write_uint(out, u64::from(self.rank))?;
        Ok(())
    }

    fn write_event(self, out: &mut ByteBuf, event: &KvEvent) -> Written {
        match event {
            KvEvent::BlockStored {
                hashes,
                parent,
                token_ids,
                block_size,
            } => {
                self.head(out, "BlockStored", 11)?;
                self.key(out, "block_hashes")?;
                self.write_hashes(out, hashes)?;
                self.key(out, "parent_block_hash")?;
                match parent {
                    Some(parent) => self.write_hash(out, parent)?,
                    None => nil(out)?,
                }
                self.key(out, "token_ids")?;
                write_array_len(out, length(token_ids.len()))?;
                for id in token_ids {
                    write_uint(out, u64::from(*id))?;
                }
                self.key(out, "block_size")?;
                write_uint(out, *block_size as u64)?;
                self.key(out, "lora_id")?;
                nil(out)?;
                self.key(out, "medium")?;
                write_str(out, MEDIUM)?;
                self.key(out, "lora_name")?;
                nil(out)?;
                self.key(out, "extra_keys")?;
                write_array_len(out, length(hashes.len()))?;
                hashes.iter().try_for_each(|_| nil(out))?;
                self.key(out, "group_idx")?;
                write_uint(out, GROUP)?;
                self.key(out, "kv_cache_spec_kind")?;
                write_str(out, SPEC_KIND)?;
                self.key(out, "kv_cache_spec_sliding_window")?;
                nil(out)
            }
            KvEvent::BlockRemoved { hashes } => {
                self.head(out, "BlockRemoved", 3)?;
                self.key(out, "block_hashes")?;
                self.write_hashes(out, hashes)?;
                self.key(out, "medium")?;
                write_str(out, MEDIUM)?;
                self.key(out, "group_idx")?;
                write_uint(out, GROUP)?;
                Ok(())
            }
            KvEvent::AllBlocksCleared => self.head(out, "AllBlocksCleared", 0),
        }
    }

    /// The type, and room for the fields after it.
    fn head(self, out: &mut ByteBuf, tag: &str, fields: u32) -> Written {
        match self.encoding {
            KvEncoding::Maps => {
                write_map_len(out, fields + 1)?;
                write_str(out, "type")?;
            }
            KvEncoding::Arrays => {
                write_array_len(out, fields + 1)?;
            }
        }
        write_str(out, tag)
    }

    fn key(self, out: &mut ByteBuf, name: &str) -> Written {
        match self.encoding {
            KvEncoding::Maps => write_str(out, name),
            KvEncoding::Arrays => Ok(()),
        }
    }

    fn write_hashes(self, out: &mut ByteBuf, hashes: &[[u8; 32]]) -> Written {
        write_array_len(out, length(hashes.len()))?;
        hashes
            .iter()
            .try_for_each(|hash| self.write_hash(out, hash))
    }

    fn write_hash(self, out: &mut ByteBuf, hash: &[u8; 32]) -> Written {
        match self.hashes {
            KvHashes::Bytes => write_bin(out, hash),
            KvHashes::Integers => {
                let [.., a, b, c, d, e, f, g, h] = *hash;
                write_uint(out, u64::from_be_bytes([a, b, c, d, e, f, g, h]))?;
                Ok(())
            }
        }
    }
}

fn nil(out: &mut ByteBuf) -> Written {
    write_nil(out).map_err(ValueWriteError::InvalidMarkerWrite)
}

/// A length as msgpack has it. Batches are of one step of the engine, which is far below.
fn length(items: usize) -> u32 {
    u32::try_from(items).expect("a step has less than 2^32 tokens")
}
