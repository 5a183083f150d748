//! The fields of a line, gone over once for writing and for reading.

use super::error::{short, Mistake};
use super::value::Value;

/// Goes over the fields of a line: one implementation writes each, the other reads each. So what a line holds is said
/// in one place, and both directions agree.
pub(crate) trait Fields {
    /// A field that every line of the kind has.
    fn field<T: Value>(&mut self, name: &'static str, value: &mut T);

    /// A field that only says something when it isn't `usual`; a line without it means that. Also for what came to a
    /// line later than the first version.
    fn unless<T: Value + PartialEq>(&mut self, name: &'static str, value: &mut T, usual: T);
}

/// Writes ` field=value` for each.
pub(crate) struct Writer<'a>(pub &'a mut String);

impl Fields for Writer<'_> {
    fn field<T: Value>(&mut self, name: &'static str, value: &mut T) {
        self.0.push(' ');
        self.0.push_str(name);
        self.0.push('=');
        value.write(self.0);
    }

    fn unless<T: Value + PartialEq>(&mut self, name: &'static str, value: &mut T, usual: T) {
        if *value != usual {
            self.field(name, value);
        }
    }
}

/// Takes the pairs of a line. The first mistake is kept.
pub(crate) struct Reader<'a> {
    pairs: Vec<(&'a str, &'a str)>,
    mistake: Option<Mistake>,
}

impl<'a> Reader<'a> {
    /// The pairs of a line, its name taken off.
    pub fn new(text: &'a str) -> Self {
        let (mut pairs, mut mistake) = (Vec::new(), None);
        for word in text.split_ascii_whitespace() {
            match word.split_once('=') {
                Some(pair) => pairs.push(pair),
                None => mistake = mistake.or_else(|| Some(Mistake::NotAField { word: short(word) })),
            }
        }
        // the fields come in the order in which they are read: the last pair is the first one taken
        pairs.reverse();
        Self { pairs, mistake }
    }

    /// What is wrong, when all fields were gone over: what is left over is wrong too.
    pub fn end(self) -> Result<(), Mistake> {
        match (self.mistake, self.pairs.last()) {
            (Some(mistake), _) => Err(mistake),
            (None, Some((field, _))) => Err(Mistake::UnknownField { field: short(field) }),
            (None, None) => Ok(()),
        }
    }

    fn take<T: Value>(&mut self, name: &'static str) -> Result<Option<T>, Mistake> {
        let Some(index) = self.pairs.iter().rposition(|(other, _)| *other == name) else { return Ok(None) };
        let (_, text) = self.pairs.remove(index);
        match T::read(text) {
            Some(value) => Ok(Some(value)),
            None => Err(Mistake::BadValue { field: name, value: short(text) }),
        }
    }
}

impl Fields for Reader<'_> {
    fn field<T: Value>(&mut self, name: &'static str, value: &mut T) {
        let mistake = match self.take(name) {
            Ok(Some(found)) => return *value = found,
            Ok(None) => Mistake::MissingField { field: name },
            Err(mistake) => mistake,
        };
        self.mistake.get_or_insert(mistake);
    }

    fn unless<T: Value + PartialEq>(&mut self, name: &'static str, value: &mut T, usual: T) {
        match self.take(name) {
            Ok(found) => *value = found.unwrap_or(usual),
            Err(mistake) => {
                self.mistake.get_or_insert(mistake);
            }
        }
    }
}
