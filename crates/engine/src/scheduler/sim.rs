//! A seeded simulation of the scheduler over a model of the cache: what each row holds, who wrote it, and what follows from it.
//!
//! The model's rows are chains of hashes over all tokens up to their own, read back from the row before, and a drawn token is a
//! function of the last row. So a block that is hit, shared or overwritten wrongly gives a wrong token in the end, besides failing a
//! check on the way. Pools are tiny, prompts share prefixes, requests come with priorities, salts and deadlines, and are cancelled in
//! every state; each seed is a different setup.
//!
//! Every other seed plays an engine that launches ahead: a decode step is run before the tick that wants it, rows that nobody wants any
//! more are dropped, and some answers end without the engine's having known it.
//!
//! After a failure the seed and the tick are printed: `run(SEED, TICKS)` in [`one_seed`] plays it again.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use glim_text::TokenId;

use super::{Limits, RequestId, Scheduler, Submission, Tick};
use crate::error::EngineError;
use crate::kv::{BlockId, Chain, KvCache, KvEvent};

const SEEDS: u64 = 100;
const TICKS: u64 = 20_000;
/// Requests that are alive at a time.
const MOST_LIVE: usize = 24;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % n
    }

    fn usize(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The row of a token behind the row before it.
fn row(before: u64, token: TokenId) -> u64 {
    mix(before ^ mix(u64::from(token.0) + 1))
}

/// What a request draws from its last row.
fn draw(last: u64, seed: u64, position: usize) -> TokenId {
    TokenId((mix(last ^ mix(seed) ^ position as u64) % 3) as u32)
}

/// What is known of a request from outside.
struct Live {
    prompt: Vec<TokenId>,
    max_tokens: usize,
    seed: u64,
    priority: i32,
    deadline: Option<Instant>,
    salt: Option<String>,
    /// It ends by a token that nobody could foresee.
    stops: bool,
    answer: Vec<TokenId>,
    has_started: bool,
    is_running: bool,
}

impl Live {
    /// The answer as it is without a cache.
    fn expected(&self) -> Vec<TokenId> {
        let mut last = self.prompt.iter().fold(0, |before, t| row(before, *t));
        let mut answer = Vec::new();
        for i in 0..self.max_tokens {
            let token = draw(last, self.seed, self.prompt.len() + i);
            answer.push(token);
            last = row(last, token);
        }
        answer
    }
}

/// A row as it lies in the cache.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    value: u64,
    salt: Option<String>,
}

/// What a row has drawn, and its own value.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    row: u64,
    token: TokenId,
}

struct Sim {
    random: Random,
    block_size: usize,
    blocks: usize,
    has_prefix_cache: bool,
    scheduler: Scheduler,
    cells: Vec<Option<Cell>>,
    launches_ahead: bool,
    /// The next tick's decode step: what each row has drawn.
    ahead: Option<Vec<(RequestId, Drawn)>>,
    live: BTreeMap<RequestId, Live>,
    /// The index as events tell it.
    stored: HashSet<[u8; 32]>,
    start: Instant,
    tally: Tally,
}

/// What a run met with, so that a test can see that it met with everything.
#[derive(Debug, Default)]
struct Tally {
    submitted: u64,
    refused: u64,
    finished: u64,
    cancelled_waiting: u64,
    cancelled_prefill: u64,
    cancelled_decode: u64,
    expired: u64,
    preempted: u64,
    hits: u64,
    removed: u64,
    /// Rows that ran before the tick that wanted them, and those that no tick wanted.
    ahead: u64,
    dropped: u64,
    ticks: u64,
}

/// Says where a run was when it failed.
struct Report {
    seed: u64,
    tick: u64,
}

impl Drop for Report {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "the simulation failed at seed {}, tick {}",
                self.seed, self.tick
            );
        }
    }
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let block_size = [1, 2, 4, 5][random.usize(4)];
        let blocks = 4 + random.usize(36);
        let max_num_seqs = 1 + random.usize(8);
        let limits = Limits {
            max_num_seqs,
            max_chunk: [1, 3, 8, 16, 32][random.usize(5)],
            max_prefill_seqs: max_num_seqs.min(1 + random.usize(4)),
            max_queue: (!random.one_in(2)).then(|| random.usize(12)),
        };
        let has_prefix_cache = !random.one_in(8);
        Self {
            scheduler: Scheduler::new(
                limits,
                KvCache::new(blocks, block_size, has_prefix_cache, true),
            ),
            random,
            block_size,
            blocks,
            has_prefix_cache,
            cells: vec![None; blocks * block_size],
            launches_ahead: seed % 2 == 1,
            ahead: None,
            live: BTreeMap::new(),
            stored: HashSet::new(),
            start: Instant::now(),
            tally: Tally::default(),
        }
    }

    /// A prompt that begins as others do, and an answer that still fits.
    fn arrive(&mut self, now: Instant) {
        let capacity = self.blocks * self.block_size;
        let family = self.random.below(3);
        let shared = self.random.usize(capacity.min(40));
        let mut prompt: Vec<TokenId> = (0..shared as u64)
            .map(|i| TokenId((mix(family * 1000 + i) % 3) as u32))
            .collect();
        for _ in 0..self.random.usize(6) {
            prompt.push(TokenId(self.random.below(3) as u32));
        }
        prompt.push(TokenId(7));
        if self.random.one_in(3) {
            prompt.truncate(self.random.usize(prompt.len()) + 1);
        }
        prompt.truncate(capacity);
        let room = capacity - prompt.len() + 1;
        let max_tokens = 1 + self.random.usize(room.min(20));
        let priority = [0, 0, 0, 0, -1, 1, 2][self.random.usize(7)];
        let ticks = 1 + self.random.below(80);
        let deadline = self
            .random
            .one_in(8)
            .then(|| now + Duration::from_millis(ticks));
        let salt = [None, None, None, Some("a"), Some("b")][self.random.usize(5)];
        let salt = salt.map(str::to_owned);
        let stops = self.launches_ahead && self.random.one_in(2);
        let choices = [1, 1, 1, 3][self.random.usize(4)];
        if let Err(error) = self.scheduler.check_queue(choices) {
            assert!(matches!(error, EngineError::QueueFull { .. }));
            assert!(self.scheduler.limits.max_queue.is_some());
            self.tally.refused += 1;
            return;
        }
        for _ in 0..choices {
            let id = self.scheduler.submit(Submission {
                prompt: prompt.clone(),
                priority,
                deadline,
                cache_salt: salt.clone(),
            });
            let live = Live {
                prompt: prompt.clone(),
                max_tokens,
                seed: self.random.below(4),
                priority,
                deadline,
                salt: salt.clone(),
                stops,
                answer: Vec::new(),
                has_started: false,
                is_running: false,
            };
            assert!(self.live.insert(id, live).is_none(), "an id is used twice");
            self.tally.submitted += 1;
        }
    }

    /// Ends a request from outside.
    fn interfere(&mut self) {
        if self.random.one_in(25) && !self.live.is_empty() {
            let at = self.random.usize(self.live.len());
            let id = *self.live.keys().nth(at).unwrap();
            let tally = &mut self.tally;
            *match self.scheduler.place(id) {
                None => &mut tally.cancelled_waiting,
                Some((sequence, _)) if sequence.computed() < self.live[&id].prompt.len() => {
                    &mut tally.cancelled_prefill
                }
                Some(_) => &mut tally.cancelled_decode,
            } += 1;
            let gone = match self.random.one_in(10) {
                true => self.scheduler.remove_tainted(id),
                false => self.scheduler.remove(id),
            };
            assert!(gone && !self.scheduler.remove(id));
            self.live.remove(&id);
        }
        if self.random.one_in(2000) {
            self.scheduler.clear_prefix_cache();
        }
    }

    fn tick(&mut self, now: Instant) {
        let tick = self.scheduler.tick(now);
        self.follow_events();
        self.check_tick(&tick, now);
        for id in &tick.expired {
            self.live.remove(id);
            self.tally.expired += 1;
        }
        for id in &tick.preempted {
            self.live.get_mut(id).unwrap().is_running = false;
            self.tally.preempted += 1;
        }
        for (id, cached) in &tick.started {
            self.check_start(*id, *cached);
        }
        let all = tick
            .decode
            .iter()
            .chain(tick.prefill.iter().map(|(id, _)| id));
        for id in all {
            self.live.get_mut(id).unwrap().is_running = true;
        }
        self.check_blocks();
        let decode = match self.ahead.take() {
            Some(rows) => {
                let is_ahead = |id| rows.iter().any(|(row, _)| row == id);
                assert!(tick.decode.iter().all(is_ahead), "nobody is left behind");
                rows
            }
            None => {
                let run = |id: &RequestId| (*id, self.run_rows(*id, 1).unwrap());
                tick.decode.iter().map(run).collect()
            }
        };
        if self.launches_ahead && tick.prefill.is_empty() && !self.random.one_in(8) {
            self.ahead = self.run_ahead(&decode, &tick.decode);
        }
        for (id, drawn) in decode {
            match tick.decode.contains(&id) {
                true => self.take_in(id, 1, Some(drawn)),
                false => self.tally.dropped += 1,
            }
        }
        for (id, range) in &tick.prefill {
            let computed = self.scheduler.place(*id).unwrap().0.computed();
            assert_eq!(computed, range.start, "a prompt is tiled in order");
            let drawn = self.run_rows(*id, range.len());
            self.take_in(*id, range.len(), drawn);
        }
        self.follow_events();
        self.tally.ticks += 1;
    }

    /// The rules of a tick, whatever is in it.
    fn check_tick(&self, tick: &Tick, now: Instant) {
        let limits = self.scheduler.limits;
        assert!(tick.decode.len() <= limits.max_num_seqs);
        assert!(tick.prefill.len() <= limits.max_prefill_seqs);
        let tokens: usize = tick.prefill.iter().map(|(_, range)| range.len()).sum();
        assert!(tokens <= limits.max_chunk);
        let planned = tick
            .decode
            .iter()
            .chain(tick.prefill.iter().map(|(id, _)| id));
        let planned: Vec<RequestId> = planned.copied().collect();
        let distinct: HashSet<&RequestId> = planned.iter().collect();
        assert_eq!(distinct.len(), planned.len(), "a request is in a tick once");
        assert!(tick.preempted.iter().all(|id| !planned.contains(id)));
        for (id, live) in &self.live {
            let is_late = live.deadline.is_some_and(|deadline| deadline <= now);
            assert_eq!(is_late, tick.expired.contains(id), "deadlines are held");
        }
        // The guarantee: nobody starves, nothing is locked up, whatever the others do.
        let alive = self
            .live
            .iter()
            .filter(|(id, _)| !tick.expired.contains(id));
        if let Some((first, _)) = alive.min_by_key(|(id, live)| (live.priority, **id)) {
            assert!(
                planned.contains(first),
                "the most urgent advances: {first:?}"
            );
        }
    }

    /// What a hit promises: the blocks are those of the index, and the next one is not in it.
    fn check_start(&mut self, id: RequestId, cached: usize) {
        let live = self.live.get_mut(&id).unwrap();
        assert!(!live.has_started, "a request starts once");
        live.has_started = true;
        let mut chain = Chain::new(live.salt.as_deref());
        chain.extend(&live.prompt, self.block_size);
        assert!(cached < live.prompt.len(), "the last token is computed");
        assert_eq!(cached % self.block_size, 0);
        let (hits, missed) = chain.hashes().split_at(cached / self.block_size);
        assert!(hits.iter().all(|hash| self.stored.contains(&hash.0)));
        let could_hit = cached + self.block_size < live.prompt.len();
        if let Some(next) = missed.first().filter(|_| could_hit) {
            assert!(!self.stored.contains(&next.0), "what is there is hit");
        }
        self.tally.hits += u64::from(cached > 0);
    }

    /// Blocks and slots are conserved, and a request that does not run holds none.
    fn check_blocks(&self) {
        let mut used = HashSet::new();
        let mut slots = HashSet::new();
        for id in self.live.keys() {
            if let Some((sequence, slot)) = self.scheduler.place(*id) {
                used.extend(sequence.blocks().iter().copied());
                assert!(slots.insert(slot), "a slot has one owner");
            }
        }
        let kv = self.scheduler.kv();
        assert_eq!(
            kv.blocks_free() + used.len(),
            self.blocks,
            "blocks are conserved"
        );
        assert!(kv.blocks_cached() <= kv.blocks_free());
        assert_eq!(
            slots.len() + self.scheduler.free_slots.len(),
            self.scheduler.limits.max_num_seqs
        );
        let (waiting, running) = self.scheduler.counts();
        assert_eq!((running, waiting + running), (slots.len(), self.live.len()));
    }

    /// Runs the next `n` tokens of a request through the model. What is drawn if they are its last.
    fn run_rows(&mut self, id: RequestId, n: usize) -> Option<Drawn> {
        let live = &self.live[&id];
        let (sequence, _) = self.scheduler.place(id).unwrap();
        let tokens = self.scheduler.tokens(id);
        let known: Vec<TokenId> = live.prompt.iter().chain(&live.answer).copied().collect();
        assert_eq!(tokens, known, "no token is lost");
        let from = sequence.computed();
        // All that it attends to is its own, by content and by salt.
        let mut before = 0;
        for (position, token) in tokens[..from].iter().enumerate() {
            let slot = sequence.slot(position, self.block_size) as usize;
            let cell = self.cells[slot].as_ref().unwrap();
            before = row(before, *token);
            assert_eq!(
                (cell.value, &cell.salt),
                (before, &live.salt),
                "{id:?} at {position}"
            );
        }
        let (new, is_last) = (tokens[from..from + n].to_vec(), from + n == tokens.len());
        let owners = self.owners();
        for (i, token) in new.into_iter().enumerate() {
            before = self.write(&owners, id, from + i, row(before, token));
        }
        is_last.then(|| self.drawn(id, from + n, before))
    }

    /// What follows from the last row of a request, at `position`.
    fn drawn(&self, id: RequestId, position: usize, row: u64) -> Drawn {
        let token = draw(row, self.live[&id].seed, position);
        Drawn { row, token }
    }

    /// Writes a row, and gives it back.
    fn write(
        &mut self,
        owners: &HashMap<BlockId, usize>,
        id: RequestId,
        position: usize,
        value: u64,
    ) -> u64 {
        let (sequence, _) = self.scheduler.place(id).unwrap();
        let slot = sequence.slot(position, self.block_size) as usize;
        let block = BlockId((slot / self.block_size) as u32);
        assert_eq!(owners[&block], 1, "who writes a block has it alone");
        let salt = self.live[&id].salt.clone();
        self.cells[slot] = Some(Cell { value, salt });
        value
    }

    /// Runs the decode step behind one of which nothing is known yet but on the device.
    fn run_ahead(
        &mut self,
        step: &[(RequestId, Drawn)],
        decode: &[RequestId],
    ) -> Option<Vec<(RequestId, Drawn)>> {
        let goes_on = |(id, _): &&(RequestId, Drawn)| {
            let is_there = decode.contains(id);
            is_there && {
                let live = &self.live[id];
                live.stops || live.answer.len() + 1 < live.max_tokens
            }
        };
        let rows: Vec<(RequestId, Drawn)> = step.iter().filter(goes_on).copied().collect();
        let free = self.scheduler.kv().blocks_free();
        if !self.scheduler.reserve_ahead(rows.iter().map(|(id, _)| *id)) {
            assert_eq!(self.scheduler.kv().blocks_free(), free, "all or nothing");
            return None;
        }
        self.check_blocks();
        self.tally.ahead += rows.len() as u64;
        let owners = self.owners();
        let run = |(id, last): (RequestId, Drawn)| {
            let position = self.scheduler.place(id).unwrap().0.computed() + 1;
            let value = self.write(&owners, id, position, row(last.row, last.token));
            (id, self.drawn(id, position + 1, value))
        };
        Some(rows.into_iter().map(run).collect())
    }

    /// Reports rows as computed, and takes what was drawn.
    fn take_in(&mut self, id: RequestId, n: usize, drawn: Option<Drawn>) {
        self.scheduler.computed(id, n);
        let Some(Drawn { token, .. }) = drawn else {
            return;
        };
        let live = self.live.get_mut(&id).unwrap();
        live.answer.push(token);
        self.scheduler.drawn(id, token);
        assert_eq!(self.scheduler.answer_len(id), live.answer.len());
        if live.answer.len() == live.max_tokens {
            assert_eq!(
                live.answer,
                live.expected(),
                "the answer is that without a cache"
            );
            assert!(self.scheduler.remove(id));
            self.live.remove(&id);
            self.tally.finished += 1;
        }
    }

    /// How many running requests refer to each block.
    fn owners(&self) -> HashMap<BlockId, usize> {
        let mut owners = HashMap::new();
        for id in self.live.keys() {
            if let Some((sequence, _)) = self.scheduler.place(*id) {
                for block in sequence.blocks() {
                    *owners.entry(*block).or_insert(0) += 1;
                }
            }
        }
        owners
    }

    /// Brings the index as events tell it up to date.
    fn follow_events(&mut self) {
        for event in self.scheduler.kv_mut().take_events() {
            match event {
                KvEvent::BlockStored {
                    hashes,
                    token_ids,
                    block_size,
                    ..
                } => {
                    assert_eq!(block_size, self.block_size);
                    assert_eq!(token_ids.len(), hashes.len() * block_size);
                    for hash in hashes {
                        assert!(self.stored.insert(hash), "stored twice");
                    }
                }
                KvEvent::BlockRemoved { hashes } => {
                    self.tally.removed += hashes.len() as u64;
                    for hash in hashes {
                        assert!(self.stored.remove(&hash), "removed, but not stored");
                    }
                }
                KvEvent::AllBlocksCleared => self.stored.clear(),
            }
        }
    }

    /// Lets everything come to its end, and checks that nothing is left.
    fn drain(&mut self, mut now: Instant) {
        let remaining = |l: &Live| l.prompt.len() + l.max_tokens;
        // The most urgent advances in every tick, even if it was preempted and starts again.
        let bound: usize = self.live.values().map(remaining).sum();
        for _ in 0..=bound {
            if self.live.is_empty() {
                break;
            }
            now += Duration::from_millis(1);
            self.tick(now);
        }
        assert!(
            self.live.is_empty(),
            "requests are left after {bound} ticks"
        );
        assert!(self.scheduler.is_idle() && self.scheduler.deadlines.is_empty());
        self.check_blocks();
        let lookups = self.scheduler.kv().lookups();
        let misses: u64 = lookups.misses.iter().sum();
        assert_eq!(
            lookups.queries,
            lookups.hits + misses,
            "every token counts once"
        );
        assert!(self.has_prefix_cache || lookups.hits == 0);
        assert_eq!(self.scheduler.preemptions(), self.tally.preempted);
    }
}

/// Plays a seed.
fn run(seed: u64, ticks: u64) -> Tally {
    let mut sim = Sim::new(seed);
    let mut report = Report { seed, tick: 0 };
    let mut now = sim.start;
    for tick in 0..ticks {
        report.tick = tick;
        now += Duration::from_millis(1);
        while sim.live.len() < MOST_LIVE && sim.random.one_in(4) {
            sim.arrive(now);
        }
        sim.interfere();
        sim.tick(now);
    }
    sim.drain(now);
    sim.tally
}

#[test]
fn a_million_ticks_lose_double_and_starve_nobody() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        let tally = run(seed, TICKS);
        let ended = tally.finished
            + tally.expired
            + tally.cancelled_waiting
            + tally.cancelled_prefill
            + tally.cancelled_decode;
        assert_eq!(
            ended, tally.submitted,
            "seed {seed}: every request has one end"
        );
        sum.submitted += tally.submitted;
        sum.refused += tally.refused;
        sum.finished += tally.finished;
        sum.cancelled_waiting += tally.cancelled_waiting;
        sum.cancelled_prefill += tally.cancelled_prefill;
        sum.cancelled_decode += tally.cancelled_decode;
        sum.expired += tally.expired;
        sum.preempted += tally.preempted;
        sum.hits += tally.hits;
        sum.removed += tally.removed;
        sum.ahead += tally.ahead;
        sum.dropped += tally.dropped;
        sum.ticks += tally.ticks;
    }
    println!("{sum:?}");
    assert!(sum.ticks >= 1_000_000);
    // Everything that can happen did, and often.
    let seen = [
        sum.refused,
        sum.finished,
        sum.cancelled_waiting,
        sum.cancelled_prefill,
        sum.cancelled_decode,
        sum.expired,
        sum.preempted,
        sum.hits,
        sum.removed,
        sum.ahead,
        sum.dropped,
    ];
    assert!(seen.iter().all(|n| *n > 1000), "{sum:?}");
}

/// For a seed that failed: put it here.
#[test]
fn one_seed() {
    run(0, 1000);
}
