//! `expect`: what a script proves, in figures.

use crate::{Counters, Explanation, RequestId, Stats};

use super::{number, Arguments, Mistake, Session};

impl Session {
    pub(super) fn expect(&self, arguments: Arguments) -> Result<(), Mistake> {
        let request: Option<RequestId> = arguments.words.first().map(|word| number(word)).transpose()?;
        if let Some(word) = arguments.words.get(1) {
            return Err(format!("unknown word {word}"));
        }
        if arguments.pairs.is_empty() {
            return Err("nothing is expected".to_string());
        }
        for (key, text) in arguments.pairs {
            // `figure<=n` is cut at its `=`
            let name = key.trim_end_matches(['<', '>']);
            let found = match (request, name) {
                (Some(id), "answer") => {
                    self.expect_answer(id, text)?;
                    continue;
                }
                (Some(id), _) => self.figure_of(id, name)?,
                (None, "step_rows") => self.largest.rows,
                (None, "step_tokens") => self.largest.tokens,
                (None, "step_adapters") => self.largest.adapters,
                (None, _) => figure(&self.core.stats(), name).ok_or_else(|| format!("no figure {name}"))?,
            };
            let wanted: u64 = number(text)?;
            let right = match &key[name.len()..] {
                "" => found == wanted,
                "<" => found <= wanted,
                ">" => found >= wanted,
                other => return Err(format!("no comparison {other}=")),
            };
            if !right {
                let of = request.map_or(String::new(), |id| format!(" of request {id}"));
                return Err(format!("expected {key}={text}{of}, found {found}"));
            }
        }
        Ok(())
    }

    fn expect_answer(&self, id: RequestId, text: &str) -> Result<(), Mistake> {
        let (first, last) = text.split_once("..").ok_or("answer=FIRST..LAST expected")?;
        let (first, last): (u32, u32) = (number(first)?, number(last)?);
        let found = self.answers.get(&id).map(Vec::as_slice).unwrap_or_default();
        if found.iter().copied().eq(first..=last) {
            return Ok(());
        }
        Err(format!("expected answer={text} of request {id}, found {found:?}"))
    }

    fn figure_of(&self, id: RequestId, name: &str) -> Result<u64, Mistake> {
        if name == "answered" {
            return Ok(self.answers.get(&id).map_or(0, Vec::len) as u64);
        }
        let found = self.core.explain(id).ok_or_else(|| format!("nothing is known of request {id}"))?;
        let Explanation { arrived, admitted, first_token, cached_tokens, passed_by, preemptions, .. } = found;
        let since = |time: Option<u64>| time.map(|time| time - arrived);
        match name {
            "wait" => since(admitted).ok_or_else(|| format!("request {id} wasn't admitted")),
            "first_token" => since(first_token).ok_or_else(|| format!("request {id} has no token")),
            "cached_tokens" => Ok(cached_tokens.into()),
            "passed_by" => Ok(passed_by),
            "preemptions" => Ok(preemptions.into()),
            _ => Err(format!("a request has no figure {name}")),
        }
    }
}

fn figure(stats: &Stats, name: &str) -> Option<u64> {
    let Stats {
        running,
        waiting,
        adapters,
        adapters_loading,
        adapters_active,
        slots_free,
        pages_total,
        pages_free,
        pages_sequence,
        pages_adapter,
        pages_cached,
        pages_reserved,
        counters,
    } = stats;
    let now = [
        ("running", running),
        ("waiting", waiting),
        ("adapters", adapters),
        ("adapters_loading", adapters_loading),
        ("adapters_active", adapters_active),
        ("slots_free", slots_free),
        ("pages_total", pages_total),
        ("pages_free", pages_free),
        ("pages_sequence", pages_sequence),
        ("pages_adapter", pages_adapter),
        ("pages_cached", pages_cached),
        ("pages_reserved", pages_reserved),
    ];
    let now = now.into_iter().find(|(other, _)| *other == name).map(|(_, &figure)| figure.into());
    now.or_else(|| {
        Counters::named(counters).into_iter().find(|(other, _)| *other == name).map(|(_, figure)| figure)
    })
}
