//! Doubly linked lists over small numbers. An element is in at most one list; every move is O(1) and allocates nothing.

/// No element, no list.
pub(crate) const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Ends {
    front: u32,
    back: u32,
    length: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    list: u32,
    before: u32,
    after: u32,
}

const UNLINKED: Link = Link { list: NIL, before: NIL, after: NIL };
const EMPTY: Ends = Ends { front: NIL, back: NIL, length: 0 };

/// Some lists, and which of them each element is in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    ends: Vec<Ends>,
    links: Vec<Link>,
}

impl Lists {
    /// `count` empty lists.
    pub fn new(count: usize) -> Self {
        Self { ends: vec![EMPTY; count], links: Vec::new() }
    }

    /// Makes room for the lists 0 to `count`.
    pub fn grow_lists(&mut self, count: usize) {
        if count > self.ends.len() {
            self.ends.resize(count, EMPTY);
        }
    }

    /// Makes room for the elements 0 to `count`.
    pub fn grow_elements(&mut self, count: usize) {
        if count > self.links.len() {
            self.links.resize(count, UNLINKED);
        }
    }

    /// The first element of a list.
    pub fn front(&self, list: u32) -> Option<u32> {
        self.ends.get(list as usize).map(|ends| ends.front).filter(|&front| front != NIL)
    }

    /// The element after this one in its list.
    pub fn after(&self, element: u32) -> Option<u32> {
        self.links.get(element as usize).map(|link| link.after).filter(|&after| after != NIL)
    }

    /// The list that an element is in.
    pub fn list_of(&self, element: u32) -> Option<u32> {
        self.links.get(element as usize).map(|link| link.list).filter(|&list| list != NIL)
    }

    /// Elements in a list.
    pub fn length(&self, list: u32) -> u32 {
        self.ends.get(list as usize).map_or(0, |ends| ends.length)
    }

    /// The elements of a list, front to back.
    pub fn iter(&self, list: u32) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.front(list), |&element| self.after(element))
    }

    /// Puts an element at the back of a list, out of the one that it was in.
    pub fn push_back(&mut self, list: u32, element: u32) {
        self.remove(element);
        let ends = &mut self.ends[list as usize];
        let before = ends.back;
        ends.back = element;
        ends.length += 1;
        if before == NIL {
            ends.front = element;
        } else {
            self.links[before as usize].after = element;
        }
        self.links[element as usize] = Link { list, before, after: NIL };
    }

    /// Puts an element at the front of a list, out of the one that it was in.
    pub fn push_front(&mut self, list: u32, element: u32) {
        self.remove(element);
        let ends = &mut self.ends[list as usize];
        let after = ends.front;
        ends.front = element;
        ends.length += 1;
        if after == NIL {
            ends.back = element;
        } else {
            self.links[after as usize].before = element;
        }
        self.links[element as usize] = Link { list, before: NIL, after };
    }

    /// Takes an element out of the list that it is in.
    pub fn remove(&mut self, element: u32) {
        let Link { list, before, after } = std::mem::replace(&mut self.links[element as usize], UNLINKED);
        if list == NIL {
            return;
        }
        let ends = &mut self.ends[list as usize];
        ends.length -= 1;
        if before == NIL {
            ends.front = after;
        } else {
            self.links[before as usize].after = after;
        }
        let ends = &mut self.ends[list as usize];
        if after == NIL {
            ends.back = before;
        } else {
            self.links[after as usize].before = before;
        }
    }

    /// Compares ends, links and lengths.
    pub fn check(&self, name: &str) -> Result<(), String> {
        let mut linked = 0;
        for (list, ends) in self.ends.iter().enumerate() {
            let (mut before, mut count) = (NIL, 0);
            for element in self.iter(list as u32) {
                let link = self.links[element as usize];
                if link.list != list as u32 || link.before != before || count >= ends.length {
                    return Err(format!(
                        "{name}: element {element} of list {list} has {link:?}, after {before}"
                    ));
                }
                before = element;
                count += 1;
            }
            if (ends.back, ends.length) != (before, count) {
                return Err(format!("{name}: list {list} has {ends:?}, {count} elements to {before}"));
            }
            linked += count as usize;
        }
        let claimed = self.links.iter().filter(|link| link.list != NIL).count();
        if claimed != linked {
            return Err(format!("{name}: {claimed} elements name a list, {linked} are in one"));
        }
        Ok(())
    }
}
