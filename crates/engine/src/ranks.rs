//! The ranks of a model: a backend each, and a thread each if there are several.
//!
//! All ranks run the same steps in the same order; the results are rank 0's, since every rank has the same. A rank that fails,
//! panics or stalls ends the step for all with one error, and the ranks are of no more use then: a new engine makes new ones. The
//! wait for them has an end in any case: a collective gives up after the group's deadline, and so does the engine after a rank
//! that is in none.
//!
//! A step can be handed over and waited for later ([`Ranks::submit`]). Ranks on threads say nothing when they take it: what became of it,
//! a failure too, is said when it is waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use glim_plan::collective::{Group, RankFailure, RankFault};
use glim_plan::{
    Allocated, Backend, BackendError, BufferId, Caps, Plan, Profile, ReadTarget, StateDecl, StepId,
    StepInputs, StepResults, Ticket, WeightGroup, WeightSource,
};

use crate::panics::watched;

/// What the names of the ranks' threads begin with.
const RANK_THREAD: &str = "glim-rank-";

/// How long a rank is given to come back once another has failed: it learns of that at its next collective.
const GRACE: Duration = Duration::from_millis(500);

/// What is done on the way to an engine that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadStage {
    /// Weights are read and laid out, caches are allocated.
    Weights,
    /// Steps are prepared: kernels are compiled, or found.
    Steps,
    /// Steps get the memory that they run with, and are captured where they run as graphs.
    Memory,
}

/// One rank before it is loaded.
pub struct Rank<'a> {
    /// Its backend, which meets the others through its place in the group.
    pub backend: Box<dyn Backend>,
    /// Its part of the weights.
    pub weights: &'a dyn WeightSource,
}

/// All ranks of an engine.
pub(crate) enum Ranks {
    /// Alone: it runs on the caller's thread.
    One(One),
    /// Several, on threads of their own.
    Many(Many),
}

impl Ranks {
    /// Loads the weights and allocates the state of all ranks, side by side. `groups` are each rank's.
    pub(crate) fn load(
        mut ranks: Vec<Rank<'_>>,
        group: Option<Arc<dyn Group>>,
        groups: &[Vec<WeightGroup>],
        state: &StateSizes<'_>,
    ) -> Result<Self, BackendError> {
        std::thread::scope(|scope| {
            let loads: Vec<_> = ranks
                .iter_mut()
                .zip(groups)
                .map(|(rank, groups)| scope.spawn(move || load(rank, groups, state)))
                .collect();
            let joined = loads.into_iter().map(|load| match load.join() {
                Ok(loaded) => loaded,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.collect::<Result<Vec<()>, BackendError>>()
        })?;
        let mut backends: Vec<Box<dyn Backend>> =
            ranks.into_iter().map(|rank| rank.backend).collect();
        match (group, backends.len()) {
            (Some(group), n) if n > 1 => Ok(Self::Many(Many::new(backends, group))),
            (group, _) => Ok(Self::One(One {
                backend: backends.remove(0),
                group,
                broken: None,
            })),
        }
    }

    pub(crate) fn caps(&self) -> Caps {
        match self {
            Self::One(one) => one.backend.caps(),
            Self::Many(many) => many.caps.clone(),
        }
    }

    /// Prepares the step that each rank has one of these plans for, in the order of ranks.
    pub(crate) fn prepare(&mut self, plans: &[Plan]) -> Result<StepId, BackendError> {
        match self {
            Self::One(one) => one.backend.prepare(&plans[0]),
            Self::Many(many) => many.prepare(plans),
        }
    }

    /// Makes all that the prepared steps run with; what each rank then holds. `plan` is one of theirs.
    pub(crate) fn seal(&mut self, plan: &Plan) -> Result<Vec<Option<Allocated>>, BackendError> {
        match self {
            Self::One(one) => {
                one.backend.seal()?;
                Ok(vec![one.backend.allocated()])
            }
            Self::Many(many) => many.ask(
                plan,
                || Job::Seal,
                |reply| match reply {
                    Reply::Sealed(allocated) => Some(allocated),
                    _ => None,
                },
            ),
        }
    }

    /// Reads a rank's memory.
    pub(crate) fn read(
        &self,
        rank: usize,
        target: ReadTarget<'_>,
    ) -> Result<Vec<u8>, BackendError> {
        match self {
            Self::One(one) => one.backend.read(target),
            Self::Many(many) => many.read(rank, target),
        }
    }

    /// Rank and operation, by its index, that a step failed in, as far as that is known of ranks that meet.
    pub(crate) fn failed_in(&self) -> Option<(usize, usize)> {
        match self {
            Self::One(one) => one.group.as_ref().map(|group| (0, group.op_of(0))),
            Self::Many(many) => {
                let failure = many.group.failure();
                failure.map(|failure| (failure.rank, failure.op))
            }
        }
    }

    /// The hash of a rank's weight where it lies, if its backend has a way to that.
    pub(crate) fn hash(&self, rank: usize, weight: &str) -> Result<Option<u64>, BackendError> {
        match self {
            Self::One(one) => one.backend.hash(weight),
            Self::Many(many) => many.hash(rank, weight),
        }
    }

    /// Nodes of the graph that rank 0 runs a step as, if it is one.
    pub(crate) fn nodes(&self, step: StepId) -> Option<usize> {
        match self {
            Self::One(one) => one.backend.nodes(step),
            Self::Many(many) => many.nodes(step),
        }
    }

    /// Runs a step on every rank; the results of each. `plan` is rank 0's.
    pub(crate) fn run(
        &mut self,
        step: StepId,
        plan: &Plan,
        inputs: &Arc<StepInputs>,
    ) -> Result<Vec<StepResults>, BackendError> {
        match self {
            Self::One(one) => Ok(vec![
                one.watched(plan, |backend| backend.run(step, inputs))?,
            ]),
            Self::Many(many) => many.run(step, plan, inputs),
        }
    }

    /// Runs a step `repeats` times on every rank, and watches its operations; the profiles of each rank. `plan` is rank 0's.
    pub(crate) fn profile(
        &mut self,
        step: StepId,
        plan: &Plan,
        inputs: &Arc<StepInputs>,
        repeats: usize,
    ) -> Result<Vec<Vec<Profile>>, BackendError> {
        match self {
            Self::One(one) => {
                let profile = |backend: &mut dyn Backend| backend.profile(step, inputs, repeats);
                Ok(vec![one.watched(plan, profile)?])
            }
            Self::Many(many) => many.profile(step, plan, inputs, repeats),
        }
    }

    /// Hands a step over to every rank. `plan` is rank 0's.
    pub(crate) fn submit(
        &mut self,
        step: StepId,
        plan: &Plan,
        inputs: &Arc<StepInputs>,
    ) -> Result<RankTicket, BackendError> {
        match self {
            Self::One(one) => {
                let ticket = one.watched(plan, |backend| backend.submit(step, inputs));
                ticket.map(RankTicket::One)
            }
            Self::Many(many) => many.submit(step, plan, inputs),
        }
    }

    /// The results of each rank for a step that was handed over. `plan` is rank 0's.
    pub(crate) fn wait(
        &mut self,
        ticket: RankTicket,
        plan: &Plan,
    ) -> Result<Vec<StepResults>, BackendError> {
        match (self, ticket) {
            (Self::One(one), RankTicket::One(ticket)) => {
                Ok(vec![one.watched(plan, |backend| backend.wait(ticket))?])
            }
            (Self::Many(many), RankTicket::Many) => many.ask(plan, || Job::Wait, results),
            // A ticket of other ranks: there is no way to have one.
            (ranks, _) => Err(BackendError::Unsupported {
                backend: ranks.caps().name,
                plan: plan.name.clone(),
                reason: "the ticket is not of these ranks".into(),
            }),
        }
    }
}

/// A rank that is alone.
pub(crate) struct One {
    backend: Box<dyn Backend>,
    /// Of one, where it says which operation it is in.
    group: Option<Arc<dyn Group>>,
    /// It has panicked: nobody knows what state it is in.
    broken: Option<RankFailure>,
}

impl One {
    /// A job of a step; a panic is its error.
    fn watched<T>(
        &mut self,
        plan: &Plan,
        job: impl FnOnce(&mut dyn Backend) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        if let Some(failure) = &self.broken {
            return Err(failure.clone().in_plan(plan));
        }
        watched(|| job(&mut *self.backend)).unwrap_or_else(|reason| {
            let group = self.group.as_ref();
            let failure = RankFailure {
                rank: 0,
                op: group.map_or(RankFailure::UNKNOWN_OP, |group| group.op_of(0)),
                fault: RankFault::Panicked(reason),
            };
            self.broken = Some(failure.clone());
            Err(failure.in_plan(plan))
        })
    }
}

/// A step that every rank was handed over. Waited for in the order of submission.
#[derive(Debug)]
pub(crate) enum RankTicket {
    One(Ticket),
    /// Each rank keeps its own.
    Many,
}

/// What state every rank allocates.
pub(crate) struct StateSizes<'a> {
    pub(crate) decls: &'a [StateDecl],
    pub(crate) block_size: usize,
    pub(crate) blocks: usize,
    pub(crate) sequence_slots: usize,
}

fn load(
    rank: &mut Rank<'_>,
    groups: &[WeightGroup],
    state: &StateSizes<'_>,
) -> Result<(), BackendError> {
    rank.backend.load(groups, rank.weights)?;
    let StateSizes {
        decls,
        block_size,
        blocks,
        sequence_slots,
    } = *state;
    rank.backend
        .alloc_state(decls, block_size, blocks, sequence_slots)
}

enum Job {
    Prepare(Box<Plan>),
    Seal,
    Run(StepId, Arc<StepInputs>),
    Profile(StepId, Arc<StepInputs>, usize),
    /// Gets no reply.
    Submit(StepId, Arc<StepInputs>),
    /// For the first of those that were submitted and not waited for.
    Wait,
    Read(Target),
    Hash(String),
    Nodes(StepId),
}

/// [`ReadTarget`], owned.
enum Target {
    Weight(String),
    State(String),
    Carry(String),
    Buffer(StepId, BufferId),
}

impl Target {
    fn new(target: ReadTarget<'_>) -> Self {
        match target {
            ReadTarget::Weight(name) => Self::Weight(name.to_owned()),
            ReadTarget::State(name) => Self::State(name.to_owned()),
            ReadTarget::Carry(name) => Self::Carry(name.to_owned()),
            ReadTarget::Buffer(step, id) => Self::Buffer(step, id),
        }
    }

    fn read(&self, backend: &dyn Backend) -> Result<Vec<u8>, BackendError> {
        backend.read(match self {
            Self::Weight(name) => ReadTarget::Weight(name),
            Self::State(name) => ReadTarget::State(name),
            Self::Carry(name) => ReadTarget::Carry(name),
            Self::Buffer(step, id) => ReadTarget::Buffer(*step, *id),
        })
    }
}

enum Reply {
    Prepared(StepId),
    Sealed(Option<Allocated>),
    Ran(StepResults),
    Profiled(Vec<Profile>),
    /// Kept by the rank's thread.
    Submitted(Ticket),
    Bytes(Vec<u8>),
    Hashed(Option<u64>),
    Counted(Option<usize>),
    /// With the rank's own error, if it has one.
    Failed(Option<BackendError>),
}

/// What a step gave, if that is what was replied.
fn results(reply: Reply) -> Option<StepResults> {
    match reply {
        Reply::Ran(results) => Some(results),
        _ => None,
    }
}

/// Several ranks, each on a thread that owns its backend.
pub(crate) struct Many {
    caps: Caps,
    group: Arc<dyn Group>,
    jobs: Vec<Sender<Job>>,
    replies: Receiver<(usize, Reply)>,
    threads: Vec<JoinHandle<()>>,
}

impl Many {
    fn new(backends: Vec<Box<dyn Backend>>, group: Arc<dyn Group>) -> Self {
        let caps = backends[0].caps();
        let (reply, replies) = channel();
        let (mut jobs, mut threads) = (Vec::new(), Vec::new());
        for (rank, backend) in backends.into_iter().enumerate() {
            let (send, receive) = channel();
            let (reply, group) = (reply.clone(), Arc::clone(&group));
            let body = move || serve(rank, backend, &*group, &receive, &reply);
            let thread = std::thread::Builder::new().name(format!("{RANK_THREAD}{rank}"));
            // A rank without a thread never replies, and is named when its time is over.
            threads.extend(thread.spawn(body).ok());
            jobs.push(send);
        }
        Self {
            caps,
            group,
            jobs,
            replies,
            threads,
        }
    }

    fn prepare(&mut self, plans: &[Plan]) -> Result<StepId, BackendError> {
        glim_plan::check_ranks(plans)?;
        // Replies of a step that failed may still come: nothing is asked after one.
        if self.group.failure().is_some() {
            return Err(self.failure(&plans[0]));
        }
        for (jobs, plan) in self.jobs.iter().zip(plans) {
            // A thread that is gone is found below.
            let _ = jobs.send(Job::Prepare(Box::new(plan.clone())));
        }
        let mut step = None;
        for (rank, reply) in self.gather(&plans[0])? {
            if let Reply::Prepared(id) = reply
                && *step.get_or_insert(id) != id
            {
                let fault = RankFault::Differs("numbers its steps otherwise than rank 0".into());
                self.group.fail(rank, fault);
                return Err(self.failure(&plans[0]));
            }
        }
        step.ok_or_else(|| self.failure(&plans[0]))
    }

    fn run(
        &mut self,
        step: StepId,
        plan: &Plan,
        inputs: &Arc<StepInputs>,
    ) -> Result<Vec<StepResults>, BackendError> {
        if self.group.failure().is_some() {
            return Err(self.failure(plan));
        }
        self.ask(plan, || Job::Run(step, Arc::clone(inputs)), results)
    }

    fn profile(
        &mut self,
        step: StepId,
        plan: &Plan,
        inputs: &Arc<StepInputs>,
        repeats: usize,
    ) -> Result<Vec<Vec<Profile>>, BackendError> {
        if self.group.failure().is_some() {
            return Err(self.failure(plan));
        }
        let job = || Job::Profile(step, Arc::clone(inputs), repeats);
        self.ask(plan, job, |reply| match reply {
            Reply::Profiled(profiles) => Some(profiles),
            _ => None,
        })
    }

    fn submit(
        &mut self,
        step: StepId,
        plan: &Plan,
        inputs: &Arc<StepInputs>,
    ) -> Result<RankTicket, BackendError> {
        if self.group.failure().is_some() {
            return Err(self.failure(plan));
        }
        for jobs in &self.jobs {
            // A thread that is gone is found when the step is waited for.
            let _ = jobs.send(Job::Submit(step, Arc::clone(inputs)));
        }
        Ok(RankTicket::Many)
    }

    /// Gives every rank a job; what each replies, in the order of ranks.
    fn ask<T>(
        &mut self,
        plan: &Plan,
        job: impl Fn() -> Job,
        of_reply: impl Fn(Reply) -> Option<T>,
    ) -> Result<Vec<T>, BackendError> {
        for jobs in &self.jobs {
            let _ = jobs.send(job());
        }
        let mut replies = self.gather(plan)?;
        replies.sort_by_key(|(rank, _)| *rank);
        let results = replies.into_iter();
        let results = results.map(|(_, reply)| of_reply(reply).ok_or_else(|| self.failure(plan)));
        results.collect()
    }

    fn read(&self, rank: usize, target: ReadTarget<'_>) -> Result<Vec<u8>, BackendError> {
        let job = Job::Read(Target::new(target));
        self.ask_one(rank, job, |reply| match reply {
            Reply::Bytes(bytes) => Some(bytes),
            _ => None,
        })
    }

    fn hash(&self, rank: usize, weight: &str) -> Result<Option<u64>, BackendError> {
        let job = Job::Hash(weight.to_owned());
        self.ask_one(rank, job, |reply| match reply {
            Reply::Hashed(hash) => Some(hash),
            _ => None,
        })
    }

    fn nodes(&self, step: StepId) -> Option<usize> {
        let counted = self.ask_one(0, Job::Nodes(step), |reply| match reply {
            Reply::Counted(nodes) => Some(nodes),
            _ => None,
        });
        // Only shown: who does not answer is found when it is to run.
        counted.ok().flatten()
    }

    /// Asks one rank what needs no other.
    fn ask_one<T>(
        &self,
        rank: usize,
        job: Job,
        of_reply: impl Fn(Reply) -> Option<T>,
    ) -> Result<T, BackendError> {
        let gone = |reason: &str| BackendError::Unsupported {
            backend: self.caps.name.clone(),
            plan: "of this call".into(),
            reason: format!("rank {rank} {reason}"),
        };
        if self.group.failure().is_some() {
            return Err(gone("is of no more use, since a step failed"));
        }
        let jobs = self.jobs.get(rank).ok_or_else(|| gone("does not exist"))?;
        jobs.send(job).map_err(|_| gone("has ended"))?;
        match self.replies.recv_timeout(self.group.deadline()) {
            Ok((_, Reply::Failed(Some(error)))) => Err(error),
            Ok((_, reply)) => of_reply(reply).ok_or_else(|| gone("answers something else")),
            Err(_) => Err(gone("does not answer")),
        }
    }

    /// Every rank's reply, or the one error that ends the step.
    fn gather(&self, plan: &Plan) -> Result<Vec<(usize, Reply)>, BackendError> {
        let ranks = self.jobs.len();
        let mut replies: Vec<(usize, Reply)> = Vec::with_capacity(ranks);
        let mut error = None;
        let start = Instant::now();
        // A step may take as long as its collectives go on: the time counts from the last sign of life.
        let mut until = start + self.group.deadline();
        let mut seen = self.progress();
        while replies.len() < ranks {
            let left = until.saturating_duration_since(Instant::now());
            match self.replies.recv_timeout(left.min(GRACE)) {
                Ok((rank, reply)) => {
                    let reply = match reply {
                        Reply::Failed(own) => {
                            error = error.or(own);
                            Reply::Failed(None)
                        }
                        reply => reply,
                    };
                    replies.push((rank, reply));
                    if self.group.failure().is_some() {
                        until = until.min(Instant::now() + GRACE);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.progress();
                    let failed = self.group.failure().is_some();
                    if now != seen && !failed {
                        (seen, until) = (now, Instant::now() + self.group.deadline());
                    }
                    if Instant::now() >= until {
                        self.name_the_silent(&replies);
                        break;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.name_the_silent(&replies);
                    break;
                }
            }
        }
        match (self.group.failure(), error) {
            // The first rank that failed has its own error at hand; the others' say whom they waited for.
            (Some(failure), Some(error)) if matches!(failure.fault, RankFault::Failed(_)) => {
                let own = |e: &BackendError| !matches!(e, BackendError::Rank { .. });
                Err(Some(error)
                    .filter(own)
                    .unwrap_or_else(|| self.failure(plan)))
            }
            (Some(_), _) => Err(self.failure(plan)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(replies),
        }
    }

    /// The operation that each rank is in.
    fn progress(&self) -> Vec<usize> {
        (0..self.jobs.len())
            .map(|rank| self.group.op_of(rank))
            .collect()
    }

    fn name_the_silent(&self, replies: &[(usize, Reply)]) {
        let replied = |rank: &usize| replies.iter().any(|(r, _)| r == rank);
        if let Some(rank) = (0..self.jobs.len()).find(|rank| !replied(rank)) {
            let seconds = self.group.deadline().as_secs_f64();
            let fault = RankFault::Failed(format!("no sign of life within {seconds} s"));
            self.group.fail(rank, fault);
        }
    }

    fn failure(&self, plan: &Plan) -> BackendError {
        match self.group.failure() {
            Some(failure) => failure.in_plan(plan),
            None => BackendError::Unsupported {
                backend: self.caps.name.clone(),
                plan: plan.name.clone(),
                reason: "a rank gave no result".into(),
            },
        }
    }
}

impl Drop for Many {
    /// Ends the threads. One that is stuck is left behind: waiting for it would be the hang that deadlines are there to prevent.
    fn drop(&mut self) {
        self.jobs.clear();
        let until = Instant::now() + GRACE;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// The life of a rank's thread.
fn serve(
    rank: usize,
    mut backend: Box<dyn Backend>,
    group: &dyn Group,
    jobs: &Receiver<Job>,
    replies: &Sender<(usize, Reply)>,
) {
    // Steps that were submitted, or why one could not be: `None` for a panic.
    let mut submitted: VecDeque<Result<Ticket, Option<BackendError>>> = VecDeque::new();
    for job in jobs {
        let is_submit = matches!(job, Job::Submit(..));
        let done = watched(|| match job {
            Job::Prepare(plan) => backend.prepare(&plan).map(Reply::Prepared),
            Job::Seal => backend.seal().map(|()| Reply::Sealed(backend.allocated())),
            Job::Run(step, inputs) => backend.run(step, &inputs).map(Reply::Ran),
            Job::Profile(step, inputs, repeats) => {
                let profiles = backend.profile(step, &inputs, repeats);
                profiles.map(Reply::Profiled)
            }
            Job::Submit(step, inputs) => backend.submit(step, &inputs).map(Reply::Submitted),
            Job::Wait => match submitted.pop_front() {
                Some(Ok(ticket)) => backend.wait(ticket).map(Reply::Ran),
                Some(Err(error)) => Ok(Reply::Failed(error)),
                None => Ok(Reply::Failed(None)),
            },
            // A question that has no answer is no failure of the rank.
            Job::Read(target) => Ok(match target.read(&*backend) {
                Ok(bytes) => Reply::Bytes(bytes),
                Err(error) => Reply::Failed(Some(error)),
            }),
            Job::Hash(weight) => Ok(match backend.hash(&weight) {
                Ok(hash) => Reply::Hashed(hash),
                Err(error) => Reply::Failed(Some(error)),
            }),
            Job::Nodes(step) => Ok(Reply::Counted(backend.nodes(step))),
        });
        let reply = match done {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => {
                // What another rank did is known to the group already.
                if !matches!(error, BackendError::Rank { .. }) {
                    group.fail(rank, RankFault::Failed(error.to_string()));
                }
                Reply::Failed(Some(error))
            }
            Err(reason) => {
                group.fail(rank, RankFault::Panicked(reason));
                Reply::Failed(None)
            }
        };
        if is_submit {
            submitted.push_back(match reply {
                Reply::Submitted(ticket) => Ok(ticket),
                Reply::Failed(error) => Err(error),
                _ => Err(None),
            });
            continue;
        }
        if replies.send((rank, reply)).is_err() {
            return;
        }
    }
}
