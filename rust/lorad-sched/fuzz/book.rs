//! What the calls promised: each accepted request is answered once, its tokens in order before that, and what is said
//! about adapters fits what was done with them.

use std::collections::BTreeMap;

use lorad_sched::{AdapterId, Event, FinishReason};

/// What is known about an accepted request.
pub struct Promise {
    pub adapter: Option<AdapterId>,
    pub max_tokens: u32,
    pub stop_tokens: Vec<u32>,
    /// Prompt and answer, in tokens.
    pub work: u64,
    running: bool,
    answer: Vec<u32>,
}

impl Promise {
    pub fn new(adapter: Option<AdapterId>, prompt: usize, max_tokens: u32, stop_tokens: Vec<u32>) -> Self {
        let work = prompt as u64 + u64::from(max_tokens);
        Self { adapter, max_tokens, stop_tokens, work, running: false, answer: Vec::new() }
    }

    fn stopped(&self) -> bool {
        self.answer.last().is_some_and(|token| self.stop_tokens.contains(token))
    }
}

/// Everything that the core still owes.
#[derive(Default)]
pub struct Book {
    /// Accepted requests that weren't answered yet.
    pub open: BTreeMap<u64, Promise>,
    /// Registered adapters that aren't gone.
    pub adapters: Vec<AdapterId>,
    /// Page-ins of the plans that weren't reported yet; true: they may be stopped.
    pub loading: Vec<(AdapterId, bool)>,
    /// Adapters whose bytes were asked for.
    pub wanted: Vec<AdapterId>,
}

impl Book {
    pub fn accept(&mut self, id: u64, promise: Promise) {
        assert!(self.open.insert(id, promise).is_none(), "request {id} was accepted twice");
    }

    /// Work that is left at most, in tokens.
    pub fn work(&self) -> u64 {
        self.open.values().map(|promise| promise.work).sum()
    }

    pub fn is_loading(&self, adapter: AdapterId) -> bool {
        self.loading.iter().any(|&(other, _)| other == adapter)
    }

    /// Books an event, and ends the process if it mustn't be.
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Admitted { request, .. } => {
                let promise = self.open.get_mut(&request).expect("admitted, not open");
                assert!(!std::mem::replace(&mut promise.running, true), "{request} admitted twice");
            }
            Event::Preempted { request } => {
                let promise = self.open.get_mut(&request).expect("preempted, not open");
                assert!(std::mem::replace(&mut promise.running, false), "{request} wasn't running");
            }
            Event::Token { request, token } => {
                let promise = self.open.get_mut(&request).expect("a token for nobody");
                assert!(promise.running && promise.answer.len() < promise.max_tokens as usize);
                assert!(!promise.stopped(), "a token after the stop token");
                promise.answer.push(token);
            }
            Event::Finished { request, reason } => {
                let promise = self.open.remove(&request).expect("finished twice, or never accepted");
                match reason {
                    FinishReason::Stop => assert!(promise.stopped()),
                    FinishReason::Length => {
                        assert!(!promise.stopped());
                        assert_eq!(promise.answer.len(), promise.max_tokens as usize);
                    }
                    FinishReason::Aborted | FinishReason::Failed { .. } => {}
                }
            }
            Event::AdapterWanted { adapter } => {
                assert!(self.adapters.contains(&adapter) && !self.wanted.contains(&adapter));
                self.wanted.push(adapter);
            }
            Event::AdapterDropped { adapter } => {
                let load = self.loading.iter_mut().find(|(other, _)| *other == adapter);
                load.expect("dropped, and isn't being paged in").1 = true;
            }
            Event::AdapterGone { adapter } => {
                let place = self.adapters.iter().position(|&other| other == adapter);
                self.adapters.remove(place.expect("gone twice, or never registered"));
                self.wanted.retain(|&other| other != adapter);
                assert!(self.open.values().all(|promise| promise.adapter != Some(adapter)));
                assert!(!self.is_loading(adapter), "gone while something copies into its pages");
            }
            Event::AdapterLoading { adapter, .. } => {
                assert!(!self.is_loading(adapter), "paged in twice at once");
                self.loading.push((adapter, false));
            }
            Event::AdapterHot { .. } | Event::AdapterEvicted { .. } | Event::AdapterFailed { .. } => {}
        }
    }
}
