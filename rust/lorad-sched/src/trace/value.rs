//! Values of a trace's fields as text.

use std::borrow::Cow;
use std::fmt::Write;

use crate::policy::{Eviction, Order, Split};
use crate::{AdapterId, Priority};

/// What a field can hold. Text has no blank, no `=` and no line end.
pub(crate) trait Value: Sized {
    /// Writes the value at the end of `text`.
    fn write(&self, text: &mut String);
    /// The value that was written so.
    fn read(text: &str) -> Option<Self>;
}

/// A plain number.
pub(crate) trait Number: Value {}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Number for $number {}

        impl Value for $number {
            fn write(&self, text: &mut String) {
                // writing to a String can't fail
                let _ = write!(text, "{self}");
            }
            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
        }
    )+};
}

numbers!(u32, u64, i32);

/// For fields that are left out when there is nothing to say.
impl<T: Number> Value for Option<T> {
    fn write(&self, text: &mut String) {
        if let Some(number) = self {
            number.write(text);
        }
    }
    fn read(text: &str) -> Option<Self> {
        T::read(text).map(Some)
    }
}

fn write_list<T: Value>(list: &[T], text: &mut String) {
    for (index, element) in list.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        element.write(text);
    }
}

fn read_list<T: Value>(text: &str) -> Option<Vec<T>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.split(',').map(T::read).collect()
}

impl<T: Value> Value for Vec<T> {
    fn write(&self, text: &mut String) {
        write_list(self, text);
    }
    fn read(text: &str) -> Option<Self> {
        read_list(text)
    }
}

/// Borrowed where it's written, so that recording copies nothing.
impl<T: Value + Clone> Value for Cow<'_, [T]> {
    fn write(&self, text: &mut String) {
        write_list(self, text);
    }
    fn read(text: &str) -> Option<Self> {
        read_list(text).map(Cow::Owned)
    }
}

impl Value for AdapterId {
    fn write(&self, text: &mut String) {
        self.number().write(text);
    }
    fn read(text: &str) -> Option<Self> {
        u32::read(text).map(AdapterId::from_number)
    }
}

/// Whose weights a request asks for.
impl Value for Option<AdapterId> {
    fn write(&self, text: &mut String) {
        match self {
            None => text.push_str("base"),
            Some(adapter) => adapter.write(text),
        }
    }
    fn read(text: &str) -> Option<Self> {
        match text {
            "base" => Some(None),
            _ => AdapterId::read(text).map(Some),
        }
    }
}

impl Value for bool {
    fn write(&self, text: &mut String) {
        text.push_str(if *self { "yes" } else { "no" });
    }
    fn read(text: &str) -> Option<Self> {
        match text {
            "yes" => Some(true),
            "no" => Some(false),
            _ => None,
        }
    }
}

impl Value for Priority {
    fn write(&self, text: &mut String) {
        text.push_str(self.name());
    }
    fn read(text: &str) -> Option<Self> {
        [Priority::Low, Priority::Normal, Priority::High].into_iter().find(|priority| priority.name() == text)
    }
}

fn order_name(order: Order) -> &'static str {
    match order {
        Order::Fair => "fair",
        Order::Arrival => "arrival",
        Order::Affinity => "affinity",
    }
}

impl Value for Order {
    fn write(&self, text: &mut String) {
        text.push_str(order_name(*self));
    }
    fn read(text: &str) -> Option<Self> {
        [Order::Fair, Order::Arrival, Order::Affinity].into_iter().find(|&order| order_name(order) == text)
    }
}

fn eviction_name(eviction: Eviction) -> &'static str {
    match eviction {
        Eviction::Cost => "cost",
        Eviction::Lru => "lru",
    }
}

impl Value for Eviction {
    fn write(&self, text: &mut String) {
        text.push_str(eviction_name(*self));
    }
    fn read(text: &str) -> Option<Self> {
        [Eviction::Cost, Eviction::Lru].into_iter().find(|&eviction| eviction_name(eviction) == text)
    }
}

impl Value for Split {
    fn write(&self, text: &mut String) {
        let _ = match self {
            Split::Unified => write!(text, "unified"),
            Split::Fixed { adapter_pages } => write!(text, "fixed:{adapter_pages}"),
            Split::Slots { count, pages } => write!(text, "slots:{count}:{pages}"),
        };
    }
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let split = match parts.next()? {
            "unified" => Split::Unified,
            "fixed" => Split::Fixed { adapter_pages: u32::read(parts.next()?)? },
            "slots" => Split::Slots { count: u32::read(parts.next()?)?, pages: u32::read(parts.next()?)? },
            _ => return None,
        };
        parts.next().is_none().then_some(split)
    }
}
