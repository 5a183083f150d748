//! The end of a run: nothing may be left.

use super::{Done, World};
use crate::book::End;
use crate::error::Kind;

impl World {
    /// Everything has ended: unregisters all, and compares what is left with what was there at the start, and the core's
    /// counters with the book.
    pub fn close(&mut self) -> Done {
        let unanswered = self.book.living();
        if unanswered > 0 {
            return Err(self.fail(Kind::Event, format!("{unanswered} requests were never answered")));
        }
        for named in self.names.values().copied().collect::<Vec<_>>() {
            self.unregister(named.id);
            self.hear()?;
        }
        let (mut accepted, mut ends, mut tokens) = (0, [0; 3], 0);
        for record in self.book.records() {
            tokens += u64::from(record.answered);
            accepted += u64::from(!matches!(record.end, Some(End::Refused(_))));
            match record.end {
                Some(End::Stop | End::Length) => ends[0] += 1,
                Some(End::Aborted) => ends[1] += 1,
                Some(End::Failed(_)) => ends[2] += 1,
                Some(End::Refused(_)) | None => {}
            }
        }
        let stats = self.core.stats();
        let (config, counters) = (self.core.config(), stats.counters);
        let pairs: [(&str, u64, u64); 12] = [
            ("generations", self.adapters.len() as u64, 0),
            ("adapters", stats.adapters.into(), 0),
            (
                "pages free or cached",
                (stats.pages_free + stats.pages_cached).into(),
                config.pages_usable().into(),
            ),
            ("pages of sequences", stats.pages_sequence.into(), 0),
            ("slots free", stats.slots_free.into(), config.slots_max.into()),
            ("running and waiting", u64::from(stats.running) + u64::from(stats.waiting), 0),
            ("accepted", counters.added, accepted),
            ("finished", counters.finished, ends[0]),
            ("aborted", counters.aborted, ends[1]),
            ("failed", counters.failed, ends[2]),
            ("tokens", counters.tokens_sampled, tokens),
            ("preemptions", counters.preemptions, self.book.preemptions),
        ];
        let differs = pairs.into_iter().find(|(_, found, expected)| found != expected);
        if let Some((name, found, expected)) = differs {
            return Err(self.fail(Kind::Left, format!("{name}: {found} in the end, expected {expected}")));
        }
        self.check()
    }
}
