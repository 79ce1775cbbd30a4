//! The table of statements and the line that sums it up.

use std::fmt::Write;

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
        writeln!(out, "{id}  {text}\n       {verdict}").expect("writing to a String does not fail");
    }
    write!(out, "{passed} passed, {failed} failed, {skipped} skipped")
        .expect("writing to a String does not fail");
    out
}

/// Whether the run as a whole is a success.
pub(crate) fn succeeds(rows: &[Row]) -> bool {
    !rows.iter().any(|row| matches!(row.outcome, Outcome::DoesNot(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
