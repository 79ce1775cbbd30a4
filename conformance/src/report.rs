//! The table of statements and the line that sums it up.

use std::fmt::Write;

/// The statements that may fail, with reasons.
const EXCEPTIONS: &str = include_str!("../exceptions.md");

/// What became of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Holds,
    DoesNot(String),
    NotRun(String),
}

/// A statement and its outcome.
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) text: &'static str,
    pub(crate) outcome: Outcome,
}

/// Whether the statement is on the list of those that may fail.
pub(crate) fn is_excepted(id: &str) -> bool {
    listed(EXCEPTIONS, id)
}

fn listed(list: &str, id: &str) -> bool {
    list.lines().any(|line| line.strip_prefix("- ").and_then(|line| line.split(':').next()) == Some(id))
}

/// The table, ordered by number, and the closing line.
pub(crate) fn table(mut rows: Vec<Row>) -> String {
    rows.sort_by_key(|row| row.id);
    let mut out = String::new();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for Row { id, text, outcome } in &rows {
        let verdict = match outcome {
            Outcome::Holds => {
                passed += 1;
                "holds".to_owned()
            }
            Outcome::DoesNot(why) => {
                failed += 1;
                format!("does not: {}", why.replace('\n', " "))
            }
            Outcome::NotRun(why) => {
                skipped += 1;
                format!("not run: {why}")
            }
        };
        let note = match (is_excepted(id), outcome) {
            (true, Outcome::DoesNot(_)) => " [listed in exceptions.md]",
            (true, Outcome::Holds) => " [take it off exceptions.md]",
            _ => "",
        };
        writeln!(out, "{id}  {text}\n       {verdict}{note}").expect("writing to a String does not fail");
    }
    write!(out, "{passed} passed, {failed} failed, {skipped} skipped")
        .expect("writing to a String does not fail");
    out
}

/// Whether the run as a whole is a success.
pub(crate) fn succeeds(rows: &[Row]) -> bool {
    rows.iter().all(|row| !matches!(row.outcome, Outcome::DoesNot(_)) || is_excepted(row.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_statements_may_fail() {
        assert!(listed("# Head\n\n- C-001: a reason\n", "C-001"));
        assert!(!listed("# Head\n\n- C-001: a reason, like C-002\n", "C-002"));
    }

    #[test]
    fn the_table_is_ordered_and_ends_with_the_sum() {
        let row = |id, outcome| Row { id, text: "text", outcome };
        let rows = vec![
            row("C-129", Outcome::Holds),
            row("C-002", Outcome::NotRun("needs --broker".to_owned())),
            row("C-001", Outcome::DoesNot("late".to_owned())),
        ];
        assert!(!succeeds(&rows));
        let table = table(rows);
        assert!(table.find("C-001") < table.find("C-002") && table.find("C-002") < table.find("C-129"));
        assert!(table.ends_with("\n1 passed, 1 failed, 1 skipped"));
    }
}
