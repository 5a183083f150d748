//! What a command line of a script says.

/// A mistake in the script.
pub(super) type Mistake = String;

/// `key=value` and bare words of a command.
pub(super) struct Arguments<'a> {
    pub(super) words: Vec<&'a str>,
    pub(super) pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        let (mut words, mut pairs) = (Vec::new(), Vec::new());
        for part in line.split_whitespace() {
            match part.split_once('=') {
                Some(pair) => pairs.push(pair),
                None => words.push(part),
            }
        }
        Self { words, pairs }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        let index = self.pairs.iter().position(|(other, _)| *other == key)?;
        Some(self.pairs.remove(index).1)
    }

    pub(super) fn number<T: std::str::FromStr>(&mut self, key: &str, default: T) -> Result<T, Mistake> {
        match self.take(key) {
            None => Ok(default),
            Some(text) => number(text),
        }
    }

    pub(super) fn word(&mut self) -> Result<&'a str, Mistake> {
        if self.words.is_empty() {
            return Err("a name or number is missing".to_string());
        }
        Ok(self.words.remove(0))
    }

    pub(super) fn end(self) -> Result<(), Mistake> {
        match (self.words.first(), self.pairs.first()) {
            (None, None) => Ok(()),
            (Some(word), _) => Err(format!("unknown word {word}")),
            (None, Some((key, _))) => Err(format!("unknown argument {key}")),
        }
    }
}

pub(super) fn number<T: std::str::FromStr>(text: &str) -> Result<T, Mistake> {
    text.parse().map_err(|_| format!("{text} isn't a number that fits here"))
}
