//! Reading a line from left to right.

use std::str::FromStr;

/// What should have come, and what did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub expected: &'static str,
    pub found: String,
}

/// The beginning of a text that may be of any length.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// A line, and how far it was read.
pub(crate) struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub fn new(line: &'a str) -> Self {
        Self { rest: line }
    }

    /// What should come doesn't.
    pub fn expected<T>(&self, expected: &'static str) -> Result<T, Expected> {
        Err(Expected { expected, found: short(self.rest) })
    }

    /// Passes a text that may come.
    pub fn maybe(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Passes a text that must come.
    pub fn word(&mut self, text: &'static str) -> Result<(), Expected> {
        if self.maybe(text) {
            Ok(())
        } else {
            self.expected(text)
        }
    }

    /// A name: letters, underscores and hyphens.
    pub fn name(&mut self) -> Result<&'a str, Expected> {
        let end = self.rest.find(|letter: char| !(letter.is_ascii_alphabetic() || "_-".contains(letter)));
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        if name.is_empty() {
            return self.expected("a name");
        }
        self.rest = rest;
        Ok(name)
    }

    pub fn number<T: FromStr>(&mut self) -> Result<T, Expected> {
        self.numeral(|letter| letter.is_ascii_digit())
    }

    /// A number that may have a point.
    pub fn decimal(&mut self) -> Result<f64, Expected> {
        self.numeral(|letter| letter.is_ascii_digit() || letter == '.')
    }

    fn numeral<T: FromStr>(&mut self, belongs: impl Fn(char) -> bool) -> Result<T, Expected> {
        let end = self.rest.find(|letter| !belongs(letter)).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        match digits.parse() {
            Ok(number) => {
                self.rest = rest;
                Ok(number)
            }
            Err(_) => self.expected("a number that fits"),
        }
    }

    /// A text and a number after it.
    pub fn pair<T: FromStr>(&mut self, text: &'static str) -> Result<T, Expected> {
        self.word(text)?;
        self.number()
    }

    /// A text and a number after it, or neither.
    pub fn maybe_pair<T: FromStr>(&mut self, text: &str) -> Result<Option<T>, Expected> {
        if self.maybe(text) {
            self.number().map(Some)
        } else {
            Ok(None)
        }
    }

    /// Numbers in brackets, blanks between them.
    pub fn list(&mut self) -> Result<Vec<u32>, Expected> {
        self.word("[")?;
        let mut list = Vec::new();
        while !self.maybe("]") {
            if !list.is_empty() {
                self.word(" ")?;
            }
            list.push(self.number()?);
        }
        Ok(list)
    }

    /// The line is read.
    pub fn is_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Nothing may come.
    pub fn end(&self) -> Result<(), Expected> {
        if self.is_end() {
            Ok(())
        } else {
            self.expected("the end of the line")
        }
    }
}
