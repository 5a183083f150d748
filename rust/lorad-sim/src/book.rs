//! The book: what each request was told, and what it may still be told. It knows no plan and no core; every event that
//! contradicts it is a fault.

use std::collections::{HashMap, VecDeque};

use crate::random::mix;
use crate::trace::Ask;

/// The token that ends an answer.
pub const STOP: u32 = 0;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With its stop token.
    Stop,
    /// With its last allowed token.
    Length,
    /// It was taken back.
    Aborted,
    /// It wasn't computed: the core's name of the reason.
    Failed(&'static str),
    /// It wasn't taken: the core's code of the refusal.
    Refused(&'static str),
}

/// A request in the book.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was asked.
    pub ask: Ask,
    /// Tag of its adapter's generation, 0 for the base.
    pub tag: u32,
    /// When it arrived, in microseconds, as all times here.
    pub arrived_us: u64,
    /// When it was first admitted.
    pub admitted_us: Option<u64>,
    /// When its first token came.
    pub first_us: Option<u64>,
    /// When it ended.
    pub ended_us: Option<u64>,
    /// How it ended.
    pub end: Option<End>,
    /// Tokens of its answer.
    pub answered: u32,
    /// Its line in the page table, while it's admitted.
    pub line: Option<u32>,
    /// The host asked for its abort.
    pub aborting: bool,
    /// The worker failed it.
    pub failing: bool,
    /// Prompt and answer, while it lives; at the end those that it will be told.
    tokens: Vec<u32>,
    /// How many these are: the worker has sampled them in plans in flight.
    pub ahead: u32,
    /// Hash of adapter, tenant and all tokens up to each one: what its KV depends on.
    chain: Vec<u64>,
}

impl Record {
    /// Tokens known so far, to the worker at least.
    pub fn known(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Tokens that it was told, and its prompt's.
    pub fn told(&self) -> u32 {
        self.known() - self.ahead
    }

    /// One of all.
    pub fn token(&self, position: u32) -> Option<u32> {
        self.tokens.get(position as usize).copied()
    }

    /// What the KV of one of them depends on.
    pub fn content(&self, position: u32) -> Option<u64> {
        self.chain.get(position as usize).copied()
    }

    fn push(&mut self, token: u32) {
        let last = self.chain.last().copied();
        let last = last.unwrap_or(u64::from(self.tag) << 32 | u64::from(self.ask.tenant));
        self.chain.push(mix(last.wrapping_add(u64::from(token) + 1)));
        self.tokens.push(token);
    }
}

/// All requests.
#[derive(Clone, Debug, Default)]
pub struct Book {
    records: Vec<Record>,
    living: HashMap<u64, usize>,
    /// Tokens that the last commit must bring, in its order.
    due: VecDeque<(u64, u32)>,
    /// Tag of the adapter whose page-in is being reported as failed.
    pub failing_tag: Option<u32>,
    /// Preemptions so far.
    pub preemptions: u64,
}

impl Book {
    /// Every request that ever came, refused ones too.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// A request that lives.
    pub fn find(&self, id: u64) -> Option<&Record> {
        self.living.get(&id).map(|&index| &self.records[index])
    }

    fn find_mut(&mut self, id: u64) -> Option<&mut Record> {
        self.living.get(&id).map(|&index| &mut self.records[index])
    }

    /// Requests that live.
    pub fn living(&self) -> usize {
        self.living.len()
    }

    /// Tokens that the living requests may still need: a bound on the steps until all are answered.
    pub fn work(&self) -> u64 {
        let tokens = |&index: &usize| {
            let ask = self.records[index].ask;
            u64::from(ask.prompt) + u64::from(ask.max_tokens)
        };
        self.living.values().map(tokens).sum()
    }

    /// A request was accepted, or refused.
    pub fn open(
        &mut self,
        ask: Ask,
        tag: u32,
        prompt: Vec<u32>,
        arrived_us: u64,
        refused: Option<&'static str>,
    ) {
        let mut record = Record {
            ask,
            tag,
            arrived_us,
            admitted_us: None,
            first_us: None,
            ended_us: refused.map(|_| arrived_us),
            end: refused.map(End::Refused),
            answered: 0,
            line: None,
            aborting: false,
            failing: false,
            tokens: Vec::new(),
            ahead: 0,
            chain: Vec::new(),
        };
        if refused.is_none() {
            prompt.into_iter().for_each(|token| record.push(token));
            self.living.insert(ask.id, self.records.len());
        }
        self.records.push(record);
    }

    /// The host is about to take a request back.
    pub fn abort(&mut self, id: u64) {
        if let Some(record) = self.find_mut(id) {
            record.aborting = true;
        }
    }

    /// The worker samples a token of a request that lives, in a plan that isn't committed yet.
    pub fn sampled(&mut self, id: u64, token: u32) {
        if let Some(record) = self.find_mut(id) {
            record.push(token);
            record.ahead += 1;
        }
    }

    /// The worker computed a token of a request that lives, or failed it.
    pub fn promise(&mut self, id: u64, token: Option<u32>) {
        match (self.find_mut(id), token) {
            (None, _) => {}
            (Some(record), None) => record.failing = true,
            (Some(_), Some(token)) => self.due.push_back((id, token)),
        }
    }

    /// A request got a line.
    pub fn admitted(&mut self, id: u64, line: u32, now_us: u64) -> Result<(), String> {
        let record = self.find_mut(id).ok_or(format!("request {id} was admitted and doesn't live"))?;
        record.admitted_us.get_or_insert(now_us);
        match record.line.replace(line) {
            None => Ok(()),
            Some(_) => Err(format!("request {id} was admitted twice")),
        }
    }

    /// A request gave its line up.
    pub fn preempted(&mut self, id: u64) -> Result<(), String> {
        self.preemptions += 1;
        let record = self.find_mut(id).filter(|record| record.ahead == 0);
        let line = record.and_then(|record| record.line.take());
        line.map(|_| ()).ok_or(format!("request {id} was preempted and didn't run"))
    }

    /// A request was told a token.
    pub fn token(&mut self, id: u64, token: u32, now_us: u64) -> Result<(), String> {
        match self.due.pop_front() {
            Some(due) if due == (id, token) => {}
            due => return Err(format!("request {id} was told {token}, due is {due:?}")),
        }
        let record = self.find_mut(id).ok_or(format!("request {id} was told a token and doesn't live"))?;
        if record.line.is_none() || record.answered >= record.ask.max_tokens {
            return Err(format!(
                "request {id} was told token {} of {}",
                record.answered, record.ask.max_tokens
            ));
        }
        record.first_us.get_or_insert(now_us);
        let place = record.told();
        if record.ahead == 0 || record.token(place) != Some(token) {
            return Err(format!("request {id} was told {token}, sampled was {:?}", record.token(place)));
        }
        record.answered += 1;
        record.ahead -= 1;
        Ok(())
    }

    /// A request ended.
    pub fn finished(&mut self, id: u64, end: End, now_us: u64) -> Result<(), String> {
        let index = self.living.remove(&id).ok_or(format!("request {id} ended and doesn't live"))?;
        let failing_tag = self.failing_tag;
        let record = &mut self.records[index];
        let last = record.told().checked_sub(1).and_then(|place| record.token(place));
        let stopped = record.answered > 0 && last == Some(STOP);
        let right = match end {
            End::Stop => stopped && record.answered == record.ask.stop_after,
            End::Length => !stopped && record.answered == record.ask.max_tokens,
            End::Aborted => record.aborting,
            End::Failed("failed_page_in") => record.tag > 0 && failing_tag == Some(record.tag),
            End::Failed("failed_row" | "failed_plan") => record.failing,
            End::Failed(_) => true, // a reason of the core's own, as a deadline
            End::Refused(_) => false,
        };
        record.end = Some(end);
        record.ended_us = Some(now_us);
        record.line = None;
        record.tokens = Vec::new();
        record.chain = Vec::new();
        if right {
            return Ok(());
        }
        let Record { ask, answered, .. } = record;
        Err(format!("request {id} ended as {end:?} after {answered} tokens, {ask:?}"))
    }

    /// All events of a call were told: is anything still due?
    pub fn settled(&mut self) -> Result<(), String> {
        match self.due.pop_front() {
            None => Ok(()),
            Some((id, token)) => Err(format!("request {id} wasn't told {token}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(ask: Ask) -> Book {
        let mut book = Book::default();
        book.open(ask, 3, vec![7; ask.prompt as usize], 10, None);
        book.admitted(1, 0, 20).unwrap();
        book
    }

    const ASK: Ask =
        Ask { id: 1, tenant: 2, adapter: Some(4), prompt: 2, max_tokens: 2, stop_after: 0, like: 0 };

    fn tell(book: &mut Book, token: u32) -> Result<(), String> {
        book.sampled(1, token);
        book.promise(1, Some(token));
        book.token(1, token, 30)
    }

    #[test]
    fn a_request_is_answered_once_and_in_full() {
        let mut book = book(ASK);
        tell(&mut book, 8).unwrap();
        assert!(book.clone().finished(1, End::Length, 40).is_err(), "a token is missing");
        tell(&mut book, 9).unwrap();
        assert!(tell(&mut book.clone(), 9).is_err(), "a token too many");
        assert!(book.clone().finished(1, End::Stop, 40).is_err(), "it didn't stop");
        book.finished(1, End::Length, 40).unwrap();
        assert!(book.finished(1, End::Length, 40).is_err(), "twice");
        let record = &book.records()[0];
        assert_eq!((record.admitted_us, record.first_us, record.ended_us), (Some(20), Some(30), Some(40)));
    }

    #[test]
    fn tokens_come_as_promised() {
        let mut book = book(ASK);
        assert!(book.clone().token(1, 8, 30).is_err(), "nothing is due");
        book.promise(1, Some(8));
        let ready = book.clone();
        assert!(book.clone().token(1, 8, 30).is_err(), "it wasn't sampled");
        assert!(book.clone().token(1, 9, 30).is_err(), "another is due");
        assert!(book.clone().settled().is_err(), "it's due");
        book.sampled(1, 8);
        assert!(book.clone().preempted(1).is_err(), "it's in flight");
        assert!(book.clone().token(1, 8, 30).is_ok(), "it was sampled and is due");
        book = ready;
        book.preempted(1).unwrap();
        assert!(book.clone().preempted(1).is_err(), "it doesn't run");
        assert!(book.token(1, 8, 30).is_err(), "it doesn't run");
    }

    #[test]
    fn ends_have_a_cause() {
        let ends = [End::Aborted, End::Failed("failed_row"), End::Failed("failed_page_in"), End::Stop];
        for end in ends {
            assert!(book(ASK).finished(1, end, 40).is_err(), "{end:?}");
        }
        let mut aborted = book(ASK);
        aborted.abort(1);
        aborted.finished(1, End::Aborted, 40).unwrap();
        let mut failed = book(ASK);
        failed.promise(1, None);
        failed.finished(1, End::Failed("failed_row"), 40).unwrap();
        let mut page_in = book(ASK);
        page_in.failing_tag = Some(3);
        page_in.finished(1, End::Failed("failed_page_in"), 40).unwrap();
        let mut stopped = book(Ask { stop_after: 1, ..ASK });
        tell(&mut stopped, STOP).unwrap();
        stopped.finished(1, End::Stop, 40).unwrap();
    }
}
