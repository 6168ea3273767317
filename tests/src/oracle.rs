//! Which functions were entered and left, by the instruction and stack pointers of every single step.

use std::collections::HashMap;

use image::Image;
use terms::addr::Gva;

/// The calls that the steps so far consist of.
#[derive(Debug)]
pub struct Oracle {
    image: Image,
    sites: HashMap<u64, String>,
    /// The stack slots of the return addresses of open calls.
    open: Vec<u64>,
    /// Depth and name of each call.
    pub calls: Vec<(usize, String)>,
}

impl Oracle {
    /// Of functions whose names are meant.
    #[must_use]
    pub fn new(image: Image, is_meant: impl Fn(&str) -> bool) -> Self {
        let name = |site: &image::Site| {
            let function = image.functions.get(site.function.index());
            let function = function.expect("a site has its function");
            (site.address.0, function.display.to_string())
        };
        Self {
            sites: image
                .sites
                .iter()
                .map(name)
                .filter(|(_, name)| is_meant(name))
                .collect(),
            image,
            open: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// Where the site of a function is.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    pub fn address(&self, name: &str) -> Gva {
        let site = self.sites.iter().find(|(_, of)| *of == name);
        Gva(*site.unwrap_or_else(|| panic!("no site in {name}")).0)
    }

    /// Whether the instruction at `rip` is of the kernel's text, and no site.
    #[must_use]
    pub fn is_in_function(&self, rip: u64) -> bool {
        self.is_text(rip) && !self.sites.contains_key(&rip)
    }

    fn is_text(&self, rip: u64) -> bool {
        let mut text = self.image.text.iter();
        text.any(|range| (range.start.0..range.end.0).contains(&rip))
    }

    /// The instruction at `rip` comes next. Says whether calls are open.
    pub fn step(&mut self, rip: u64, rsp: u64) -> bool {
        let is_text = self.is_text(rip);
        // Out of the stub too, and nothing of the call is on the stack any more.
        while is_text && self.open.last().is_some_and(|slot| *slot < rsp) {
            self.open.pop();
        }
        if let Some(name) = self.sites.get(&rip) {
            self.calls.push((self.open.len(), name.clone()));
            self.open.push(rsp);
        }
        !self.open.is_empty()
    }
}

/// Depth and name of each call in the order of the trace.
#[must_use]
pub fn calls(report: &str) -> Vec<(usize, String)> {
    let call = |line: &str| {
        let (_, text) = line.split_once('|')?;
        let (name, _) = text.trim_start().split_once("()")?;
        let indent = text.len() - text.trim_start().len();
        Some((indent / 2 - 1, name.to_owned()))
    };
    let lines = report.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(call).collect()
}
