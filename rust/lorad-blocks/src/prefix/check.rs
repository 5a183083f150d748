//! Every equation of the cache, each side counted anew.

use super::node::Standing;
use super::{roots, PrefixCache};
use crate::pool::PageId;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected {
        Ok(())
    } else {
        Err(format!("prefix: {what}: {found:?}, expected {expected:?}"))
    }
}

impl PrefixCache {
    /// Compares everything with everything; the text names the first thing that doesn't agree. For tests and debug
    /// builds: the cost is that of the whole cache.
    pub fn check(&self) -> Result<(), String> {
        self.heap.check().map_err(|fault| format!("prefix: {fault}"))?;
        self.check_roots()?;
        self.check_places()?;
        self.check_counts()?;
        self.check_sets()
    }

    fn check_roots(&self) -> Result<(), String> {
        let mut nodes = vec![0; self.roots.all().len()];
        for (page, node) in self.nodes.iter().filter(|(_, node)| node.standing != Standing::Vacant) {
            match nodes.get_mut(node.root as usize) {
                Some(count) => *count += 1,
                None => return Err(format!("prefix: page {page} hangs from no root")),
            }
        }
        let (mut live, mut vacant) = (Vec::new(), 0);
        for (entry, (root, &counted)) in self.roots.all().iter().zip(&nodes).enumerate() {
            equal(&format!("nodes of root {entry}"), root.nodes, counted)?;
            equal(
                &format!("root {entry} is vacant"),
                root.standing == roots::Standing::Vacant,
                root.nodes == 0,
            )?;
            match root.standing {
                roots::Standing::Vacant => vacant += 1,
                roots::Standing::Live => live.push((root.domain, entry as u32)),
                roots::Standing::Dead => {}
            }
        }
        live.sort_unstable();
        if live.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("prefix: a domain has two roots: {live:?}"));
        }
        equal("vacant roots", self.roots.vacant(), vacant)?;
        let sorted: Vec<u32> = live.iter().map(|(_, root)| *root).collect();
        equal("domains", self.roots.in_order()?, sorted)
    }

    /// What each node hangs from, before anything follows these links.
    fn check_places(&self) -> Result<(), String> {
        let page_tokens = self.shape.page_tokens;
        for (page, node) in self.nodes.iter().filter(|(_, node)| node.standing != Standing::Vacant) {
            if !(1..=page_tokens).contains(&node.length) {
                return Err(format!("prefix: page {page} has {} of {page_tokens} tokens", node.length));
            }
            let standing = match node.above {
                None => {
                    equal(&format!("page {page}: column"), node.col, 0)?;
                    match self.roots[node.root].standing {
                        roots::Standing::Live => Standing::Live,
                        roots::Standing::Dead | roots::Standing::Vacant => Standing::Doomed,
                    }
                }
                Some(above) if above >= self.nodes.total() => {
                    return Err(format!(
                        "prefix: page {page} is under page {above} of {}",
                        self.nodes.total()
                    ));
                }
                Some(above) => {
                    let parent = self.nodes[above];
                    equal(&format!("page {page}: root"), node.root, parent.root)?;
                    equal(&format!("page {page}: column"), node.col, parent.col + 1)?;
                    equal(
                        &format!("page {above}, with others under it: tokens"),
                        parent.length,
                        page_tokens,
                    )?;
                    parent.standing
                }
            };
            // a page outgrown while it's held is doomed alone
            let outgrown =
                node.standing == Standing::Doomed && node.length < page_tokens && standing == Standing::Live;
            if node.standing != standing && !outgrown {
                return Err(format!("prefix: page {page} is {:?} under {standing:?}", node.standing));
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), String> {
        let total = self.nodes.total() as usize;
        let (mut children, mut busy_children, mut busy) =
            (vec![0; total], vec![0; total], vec![false; total]);
        for (page, node) in self.nodes.iter().filter(|(_, node)| node.standing != Standing::Vacant) {
            if let Some(above) = node.above {
                children[above as usize] += 1;
            }
            // columns get smaller upwards, so this ends
            let mut next = (node.holders > 0).then_some(page);
            while let Some(held) = next {
                busy[held as usize] = true;
                next = self.nodes[held].above;
            }
        }
        for (_, node) in self.nodes.iter().filter(|(page, _)| busy[*page as usize]) {
            if let Some(above) = node.above {
                busy_children[above as usize] += 1;
            }
        }
        let (mut cached, mut evictable) = (0, 0);
        for (page, node) in self.nodes.iter() {
            let index = page as usize;
            equal(&format!("page {page}: children"), node.children, children[index])?;
            equal(&format!("page {page}: busy children"), node.busy_children, busy_children[index])?;
            equal(&format!("page {page}: idle"), node.idle(), !busy[index])?;
            let key = node.evictable().then(|| self.key(page));
            equal(&format!("page {page}: key"), self.heap.key(page), key)?;
            equal(&format!("page {page}: listed"), node.listed, key.is_some())?;
            match node.standing {
                Standing::Vacant => continue,
                Standing::Live => evictable += u32::from(!busy[index]),
                Standing::Doomed if !busy[index] => {
                    return Err(format!("prefix: page {page} is doomed, idle and still here"));
                }
                Standing::Doomed => {}
            }
            cached += 1;
        }
        equal("cached pages", self.cached, cached)?;
        equal("evictable pages", self.evictable, evictable)?;
        if cached > self.shape.pages_max {
            return Err(format!("prefix: {cached} pages, at most {}", self.shape.pages_max));
        }
        Ok(())
    }

    /// Every live node is in the set of the one above it, and none there begins with all of another.
    fn check_sets(&self) -> Result<(), String> {
        let mut listed = 0;
        let roots = self.roots.all().iter().enumerate().map(|(root, _)| (root as u32, None));
        let nodes = self.nodes.iter().map(|(page, node)| (node.root, Some(page)));
        for (root, above) in roots.chain(nodes) {
            if self.roots.all().is_empty() {
                continue;
            }
            let set = self.tree.in_order(self.top(root, above))?;
            for &page in &set {
                let node = &self.nodes[page];
                let hangs = (node.standing, node.root, node.above);
                equal(&format!("page {page} in a set"), hangs, (Standing::Live, root, above))?;
            }
            let content = |page: PageId| self.nodes.content(page);
            for pair in set.windows(2) {
                let (one, other) = (content(pair[0]), content(pair[1]));
                if one >= other || other.starts_with(one) {
                    return Err(format!("prefix: page {} comes before page {}", pair[0], pair[1]));
                }
            }
            listed += set.len();
        }
        let live = self.nodes.iter().filter(|(_, node)| node.standing == Standing::Live).count();
        equal("live nodes in sets", listed, live)
    }
}
