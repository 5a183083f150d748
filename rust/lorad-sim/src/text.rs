//! Words and `key=value` pairs of a line: the form of scenarios and traces.

use std::str::FromStr;

use crate::error::SimError;

/// The parts of one line.
pub struct Line<'a> {
    number: u32,
    words: Vec<&'a str>,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Line<'a> {
    /// The lines of a text that aren't empty; what follows a `#` is a comment.
    pub fn all(text: &'a str) -> impl Iterator<Item = Line<'a>> {
        text.lines().zip(1..).filter_map(|(line, number)| {
            let line = line.split('#').next().unwrap_or("");
            let (mut words, mut pairs) = (Vec::new(), Vec::new());
            for part in line.split_whitespace() {
                match part.split_once('=') {
                    Some(pair) => pairs.push(pair),
                    None => words.push(part),
                }
            }
            let found = !words.is_empty() || !pairs.is_empty();
            words.reverse();
            found.then_some(Line { number, words, pairs })
        })
    }

    /// Its number, from 1.
    pub fn place(&self) -> u32 {
        self.number
    }

    /// A mistake in this line.
    pub fn mistake(&self, what: impl Into<String>) -> SimError {
        SimError::Text { line: self.number, what: what.into() }
    }

    /// The next bare word.
    pub fn word(&mut self) -> Result<&'a str, SimError> {
        self.words.pop().ok_or_else(|| self.mistake("a word or number is missing"))
    }

    /// The next bare word as a number.
    pub fn number<T: FromStr>(&mut self) -> Result<T, SimError> {
        let word = self.word()?;
        self.parse(word)
    }

    /// The value of a key, if it's there.
    pub fn take(&mut self, key: &str) -> Option<&'a str> {
        let index = self.pairs.iter().position(|(other, _)| *other == key)?;
        Some(self.pairs.remove(index).1)
    }

    /// The value of a key as a number, if it's there.
    pub fn value<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, SimError> {
        self.take(key).map(|text| self.parse(text)).transpose()
    }

    /// The value of a key as a number.
    pub fn needed<T: FromStr>(&mut self, key: &str) -> Result<T, SimError> {
        self.value(key)?.ok_or_else(|| self.mistake(format!("{key}= is missing")))
    }

    /// The next pair, whatever its key.
    pub fn pair(&mut self) -> Option<(&'a str, &'a str)> {
        (!self.pairs.is_empty()).then(|| self.pairs.remove(0))
    }

    /// A number.
    pub fn parse<T: FromStr>(&self, text: &str) -> Result<T, SimError> {
        text.parse().map_err(|_| self.mistake(format!("{text} isn't a number that fits here")))
    }

    /// Refuses what nobody took.
    pub fn end(mut self) -> Result<(), SimError> {
        match (self.words.pop(), self.pairs.first()) {
            (Some(word), _) => Err(self.mistake(format!("unknown word {word}"))),
            (None, Some((key, _))) => Err(self.mistake(format!("unknown key {key}"))),
            (None, None) => Ok(()),
        }
    }
}
