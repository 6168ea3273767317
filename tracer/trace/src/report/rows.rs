//! Which rows of a table are shown, and in what order.

use terms::nearest::nearest;

use super::error::ReportError;
use super::table::Table;
use crate::glob::Pattern;

/// So many names are offered for one that there is not.
pub(super) const NEAR_MISSES: usize = 3;

/// So many functions has a first screen when nobody says how many.
const FUNCTIONS: usize = 10;

/// So many threads has a timeline when nobody says how many.
const THREADS: usize = 20;
/// And a page, which can be scrolled.
const THREADS_OF_PAGE: usize = 200;

/// The rows that are wanted; without anything all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Those of functions whose names match one of these, or of all.
    pub functions: Vec<Pattern>,
    /// By this column, or as the table has them.
    pub sort: Option<String>,
    /// So many at most, the first ones.
    pub most: Option<usize>,
}

impl Rows {
    /// Whether all are wanted, as they are.
    #[must_use]
    pub fn are_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether those of this function are wanted, or of what has no name.
    pub(super) fn have(&self, name: Option<&str>) -> bool {
        let mut functions = self.functions.iter();
        self.functions.is_empty()
            || name.is_some_and(|name| functions.any(|pattern| pattern.matches_name(name)))
    }

    /// That each glob means something that `names` has, which are those of `what`: a slip of the pen leaves an empty table, in
    /// which no condition holds.
    pub(super) fn check<'a>(
        &self,
        what: &'static str,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<(), ReportError> {
        let is_missing = |pattern: &&Pattern| !names.clone().any(|name| pattern.matches_name(name));
        let Some(missing) = self.functions.iter().find(is_missing) else {
            return Ok(());
        };
        // Compared without its wildcards: `*laef*` is near `leaf`.
        let plain = missing.text().chars();
        let wanted: String = plain.filter(|char| !"*?[]".contains(*char)).collect();
        Err(ReportError::NoRow {
            glob: missing.text().to_owned(),
            what,
            near_misses: nearest(&wanted, names, NEAR_MISSES),
        })
    }

    /// Of the first screen: the first of them by what the functions themselves took.
    pub(super) fn of_overview(&self, has_times: bool) -> Self {
        let by_time = || has_times.then(|| "self".to_owned());
        Self {
            sort: self.sort.clone().or_else(by_time),
            most: self.most.or(Some(FUNCTIONS)),
            ..self.clone()
        }
    }

    /// The same, of a first screen in the order that they have: what is sorted there is its table of functions.
    pub(super) fn unsorted_if(&self, is_overview: bool) -> Self {
        Self {
            sort: self.sort.clone().filter(|_| !is_overview),
            ..self.clone()
        }
    }

    /// Of a timeline, of which vCPUs are all shown.
    pub(super) fn of_vcpus(&self) -> Self {
        Self {
            most: None,
            ..self.clone()
        }
    }

    /// Of a timeline, of which the first threads are shown.
    pub(super) fn of_threads(&self, is_page: bool) -> Self {
        let threads = if is_page { THREADS_OF_PAGE } else { THREADS };
        Self {
            most: self.most.or(Some(threads)),
            ..self.clone()
        }
    }

    /// Sorts what was chosen of `all` rows and leaves the first ones; says how many are not shown.
    pub(super) fn arrange(&self, table: &mut Table, all: usize) -> Result<(), ReportError> {
        if let Some(key) = &self.sort
            && !table.sort(key)
        {
            let columns = table.columns.iter().map(|column| column.key);
            return Err(ReportError::NoColumn {
                key: key.clone(),
                columns: columns.collect::<Vec<_>>().join(", "),
            });
        }
        table.rows.truncate(self.most.unwrap_or(usize::MAX));
        let shown = table.rows.len();
        if shown < all {
            let remark = format!("{shown} of {all} rows are shown");
            table.remarks.insert(0, remark);
        }
        Ok(())
    }
}
