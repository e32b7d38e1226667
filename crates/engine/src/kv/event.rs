//! What happens to reusable blocks, for routers that send a request where its prefix lies.
//!
//! The events are those of vLLM's `kv_events.py`; their encoding is the server's. In order they describe the index exactly: a
//! block that was stored and neither removed nor cleared since can be hit.

/// Most events that wait to be taken. Beyond it all of them give way to one [`KvEvent::AllBlocksCleared`]: who listens then knows
/// too little, never too much.
pub const KV_EVENTS_MAX: usize = 1 << 16;

/// A change of the prefix index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks that follow each other can be hit from now on.
    BlockStored {
        /// Their names.
        hashes: Vec<[u8; 32]>,
        /// The name of the block before the first; `None`: there is none.
        parent: Option<[u8; 32]>,
        /// Their tokens, one block after the other.
        token_ids: Vec<u32>,
        /// Tokens of a block.
        block_size: usize,
    },
    /// Blocks can no longer be hit.
    BlockRemoved {
        /// Their names.
        hashes: Vec<[u8; 32]>,
    },
    /// No block can be hit.
    AllBlocksCleared,
}

/// Events that have not been taken.
#[derive(Debug)]
pub(crate) struct EventLog {
    events: Vec<KvEvent>,
}

impl EventLog {
    /// A log of an index that is empty, and says so.
    pub(crate) fn new() -> Self {
        Self {
            events: vec![KvEvent::AllBlocksCleared],
        }
    }

    pub(crate) fn push(&mut self, event: KvEvent) {
        if let (Some(KvEvent::BlockRemoved { hashes }), KvEvent::BlockRemoved { hashes: more }) =
            (self.events.last_mut(), &event)
        {
            hashes.extend(more);
            return;
        }
        match event {
            KvEvent::AllBlocksCleared => self.events = vec![event],
            _ if self.events.len() >= KV_EVENTS_MAX => {
                self.events = vec![KvEvent::AllBlocksCleared];
            }
            _ => self.events.push(event),
        }
    }

    pub(crate) fn take(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(byte: u8) -> KvEvent {
        KvEvent::BlockRemoved {
            hashes: vec![[byte; 32]],
        }
    }

    #[test]
    fn removals_join_and_a_clearing_makes_what_came_before_it_moot() {
        let mut log = EventLog::new();
        log.push(removed(1));
        log.push(removed(2));
        let joined = KvEvent::BlockRemoved {
            hashes: vec![[1; 32], [2; 32]],
        };
        assert_eq!(log.take(), [KvEvent::AllBlocksCleared, joined]);
        log.push(removed(3));
        log.push(KvEvent::AllBlocksCleared);
        assert_eq!(log.take(), [KvEvent::AllBlocksCleared]);
        assert_eq!(log.take(), []);
    }

    #[test]
    fn a_log_that_nobody_reads_stays_small() {
        let mut log = EventLog::new();
        for _ in 0..KV_EVENTS_MAX + 10 {
            log.push(KvEvent::BlockStored {
                hashes: vec![[0; 32]],
                parent: None,
                token_ids: vec![0],
                block_size: 1,
            });
        }
        let events = log.take();
        assert_eq!(events.first(), Some(&KvEvent::AllBlocksCleared));
        assert!(events.len() <= KV_EVENTS_MAX);
    }
}
