//! `cargo xtask coverage-of-spec`: which numbered statements of the specification are held by a test that names them, which are in
//! `conformance/exceptions.md`, and which nobody tests.
//!
//! A test names a statement in a comment or a string, as `C-042`, or several as `C-042 … C-045`. What counts as a test is told by
//! where it lies: [`tested_part`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

const STATEMENTS: &str = "conformance/statements.txt";
const EXCEPTIONS: &str = "conformance/exceptions.md";

/// Series of statements; the order is that of the output.
const SERIES: [&str; 5] = ["C", "K", "F", "API", "FC"];

/// Who may have to hold a statement.
const SCOPES: [&str; 7] = ["broker", "core", "python", "javascript", "kotlin-swift", "go", "blueprints"];

/// Those that are here, and have to be tested.
const DUE: [&str; 3] = ["broker", "core", "python"];

/// A statement's number, such as `API-042`. The order is that of [`SERIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    series: usize,
    number: u16,
}

impl fmt::Display for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The series of two letters or one have numbers of as many digits as the highest needs.
        let width = if matches!(SERIES[self.series], "F" | "FC") { 2 } else { 3 };
        write!(out, "{}-{:0width$}", SERIES[self.series], self.number)
    }
}

/// Where a test names a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// Relative to the root of the workspace.
    file: String,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)
    }
}

struct Statement {
    scopes: Vec<&'static str>,
    title: String,
}

/// All that is known of the statements.
struct Coverage {
    statements: BTreeMap<Id, Statement>,
    /// Why no test holds them.
    exceptions: BTreeMap<Id, String>,
    /// Who names them.
    tests: BTreeMap<Id, Vec<Place>>,
}

/// What is on the command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these, such as C-042 or API, and every place that names them
    statements: Vec<String>,
}

/// Prints the table, and fails if it is not as it should be.
pub(crate) fn run(args: &Args) -> Result<()> {
    let coverage = Coverage::read(workspace::root())?;
    if args.statements.is_empty() {
        coverage.print();
        coverage.print_sums();
    } else {
        coverage.print_places(&args.statements)?;
    }
    coverage.judge()
}

/// Prints the sums, and fails if something is not as it should be.
pub(crate) fn check() -> Result<()> {
    let coverage = Coverage::read(workspace::root())?;
    coverage.print_sums();
    coverage.judge()
}

impl Coverage {
    fn read(root: &Path) -> Result<Self> {
        let text =
            |name: &str| fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"));
        let mut tests = BTreeMap::<_, Vec<_>>::new();
        for file in files(root)? {
            let content =
                fs::read_to_string(root.join(&file)).with_context(|| format!("cannot read {file}"))?;
            let Some(from) = tested_part(&file, &content) else { continue };
            for (index, line) in content.lines().enumerate().skip(from) {
                for id in named(line) {
                    tests.entry(id).or_default().push(Place { file: file.clone(), line: index + 1 });
                }
            }
        }
        let statements = read_statements(&text(STATEMENTS)?)?;
        Ok(Self { statements, exceptions: read_exceptions(&text(EXCEPTIONS)?)?, tests })
    }

    /// Whether tests hold what a scope is to hold: those that run it, or what it shares with others.
    fn holds(&self, id: Id, scope: &str) -> bool {
        let folders: &[&str] = match scope {
            "broker" => &["reference-broker/", "conformance/"],
            "core" => &["core/", "protocol/", "bindings/", "conformance/tests/"],
            "python" => &["bindings/python/", "conformance/python/"],
            _ => &[], // not here yet
        };
        let places = self.tests.get(&id).into_iter().flatten();
        places.into_iter().any(|place| folders.iter().any(|folder| place.file.starts_with(folder)))
    }

    /// Those that have to hold a statement, and of which no test does.
    fn missing(&self, id: Id, statement: &Statement) -> Vec<&'static str> {
        statement.scopes.iter().copied().filter(|scope| !self.holds(id, scope)).collect()
    }

    fn print(&self) {
        for (id, statement) in &self.statements {
            println!("{id:<7}  {}", statement.title);
            match self.tests.get(id).map(Vec::as_slice) {
                Some([only]) => println!("         {only}"),
                Some([first, others @ ..]) => println!("         {first} and {} more", others.len()),
                _ => {}
            }
            let missing = self.missing(*id, statement);
            match self.exceptions.get(id) {
                Some(reason) => println!("         exception: {reason}"),
                None if missing.is_empty() => {}
                None => println!("         no test of {}", missing.join(", ")),
            }
        }
    }

    fn print_places(&self, wanted: &[String]) -> Result<()> {
        let is_wanted =
            |id: &Id| wanted.iter().any(|wanted| *wanted == id.to_string() || wanted == SERIES[id.series]);
        let mut found = self.statements.iter().filter(|(id, _)| is_wanted(id)).peekable();
        ensure!(found.peek().is_some(), "no statement is called {}", wanted.join(" or "));
        for (id, statement) in found {
            println!("{id:<7}  {} ({})", statement.title, statement.scopes.join(", "));
            for place in self.tests.get(id).into_iter().flatten() {
                println!("         {place}");
            }
            if let Some(reason) = self.exceptions.get(id) {
                println!("         exception: {reason}");
            }
        }
        Ok(())
    }

    fn print_sums(&self) {
        println!("\n{:<13} {:>10} {:>7} {:>10} {:>7}", "", "statements", "tested", "exceptions", "nobody");
        for scope in SCOPES {
            let of_scope = self.statements.iter().filter(|(_, statement)| statement.scopes.contains(&scope));
            let ids: Vec<Id> = of_scope.map(|(id, _)| *id).collect();
            let tested = ids.iter().filter(|id| self.holds(**id, scope)).count();
            let excepted =
                ids.iter().filter(|id| !self.holds(**id, scope) && self.exceptions.contains_key(id)).count();
            println!(
                "{scope:<13} {:>10} {tested:>7} {excepted:>10} {:>7}",
                ids.len(),
                ids.len() - tested - excepted
            );
        }
    }

    /// Fails if a statement that is due is not tested, an exception is, or a test names what is no statement.
    fn judge(&self) -> Result<()> {
        let mut faults = Vec::new();
        for (id, places) in &self.tests {
            if !self.statements.contains_key(id) {
                faults.push(format!("{}: {id} is no statement of {STATEMENTS}", places[0]));
            }
        }
        for id in self.exceptions.keys() {
            if !self.statements.contains_key(id) {
                faults.push(format!("{EXCEPTIONS}: {id} is no statement of {STATEMENTS}"));
            }
        }
        for (id, statement) in &self.statements {
            let mut missing = self.missing(*id, statement);
            match (self.exceptions.get(id), self.tests.get(id)) {
                (Some(_), Some(places)) if missing.is_empty() => {
                    faults.push(format!("{}: {id} is tested: take it off {EXCEPTIONS}", places[0]));
                }
                (Some(_), _) => {}
                (None, _) => {
                    missing.retain(|scope| DUE.contains(scope));
                    if !missing.is_empty() {
                        let missing = missing.join(" and ");
                        faults.push(format!("{id} ({}): no test of {missing} names it", statement.title));
                    }
                }
            }
        }
        if faults.is_empty() {
            return Ok(());
        }
        bail!("{} of the statements:\n  {}", faults.len(), faults.join("\n  "));
    }
}

/// One statement a line: its number, its scopes with commas between, and its title.
fn read_statements(text: &str) -> Result<BTreeMap<Id, Statement>> {
    let mut statements = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts =
            line.split_once("  ").and_then(|(id, rest)| Some((id, rest.trim_start().split_once("  ")?)));
        let (id, (scopes, title)) =
            parts.with_context(|| format!("{STATEMENTS}: not a statement: {line}"))?;
        let [id] = named(id)[..] else { bail!("{STATEMENTS}: not a number: {line}") };
        let scopes = scopes.split(',').map(|scope| SCOPES.into_iter().find(|known| *known == scope));
        let scopes =
            scopes.collect::<Option<_>>().with_context(|| format!("{STATEMENTS}: not a scope: {line}"))?;
        let statement = Statement { scopes, title: title.trim().to_owned() };
        ensure!(statements.insert(id, statement).is_none(), "{STATEMENTS}: {id} is there twice");
    }
    Ok(statements)
}

/// One exception a line: `- C-000: the reason`.
fn read_exceptions(text: &str) -> Result<BTreeMap<Id, String>> {
    let mut exceptions = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("- ")) {
        let (id, reason) =
            line.split_once(": ").with_context(|| format!("{EXCEPTIONS}: no reason: {line}"))?;
        let [id] = named(id)[..] else { bail!("{EXCEPTIONS}: not a number: {line}") };
        ensure!(exceptions.insert(id, reason.to_owned()).is_none(), "{EXCEPTIONS}: {id} is there twice");
    }
    Ok(exceptions)
}

/// Every Rust and Python file, relative to the root, in the order of their names.
fn files(root: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                let is_ours =
                    !name.starts_with('.') && !matches!(name, "target" | "node_modules" | "__pycache__");
                folders.extend(is_ours.then_some(path));
            } else if path.extension().is_some_and(|end| end == "rs" || end == "py") {
                let relative = path.strip_prefix(root).unwrap_or(&path); // it was found below it
                found.insert(relative.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    Ok(found)
}

/// From which line on, counted from 0, a file is tests, if at all: whole files of tests and conformance cases, and what stands behind
/// `#[cfg(test)]`. What tests are built with names statements too, and holds none.
fn tested_part(file: &str, content: &str) -> Option<usize> {
    let mut folders: Vec<&str> = file.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    if folders.contains(&"kit") || name == "conftest.py" {
        return None;
    }
    if matches!(folders[..], ["conformance", "src", "cases", ..] | ["conformance", "python", ..])
        || folders.contains(&"tests")
        || name == "tests.rs"
    {
        return Some(0);
    }
    let is_tool = matches!(folders.first(), Some(&("conformance" | "xtask" | "bench")));
    if is_tool {
        return None;
    }
    let lines: Vec<&str> = content.lines().map(str::trim).collect();
    // Not where it says that another file is tests.
    lines.windows(2).position(|pair| pair[0] == "#[cfg(test)]" && pair[1].ends_with('{'))
}

/// The statements that a line names, those between the two ends of a range included.
fn named(line: &str) -> Vec<Id> {
    let mut found: Vec<Id> = Vec::new();
    let mut end_of_last = 0;
    for (at, _) in line.char_indices() {
        let before = line[..at].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || before == '-') {
            continue;
        }
        let Some((id, length)) = name_at(&line[at..]) else { continue };
        if let (Some(last), "…" | "–" | ".." | "to") = (found.last().copied(), line[end_of_last..at].trim())
            && last.series == id.series
        {
            found.extend((last.number + 1..id.number).map(|number| Id { number, ..id }));
        }
        found.push(id);
        end_of_last = at + length;
    }
    found
}

/// The statement whose name a text begins with, and the name's length.
fn name_at(text: &str) -> Option<(Id, usize)> {
    let (letters, rest) = text.split_once('-')?;
    let series = SERIES.iter().position(|series| *series == letters)?;
    let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let ends = rest[digits..].chars().next().is_none_or(|after| !after.is_alphanumeric());
    let number = rest[..digits].parse().ok().filter(|_| (2..=3).contains(&digits) && ends)?;
    Some((Id { series, number }, letters.len() + 1 + digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Vec<String> {
        named(line).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_are_found_where_they_stand_alone() {
        assert_eq!(
            names("/// C-001, `K-042` (F-03): API-101/FC-07."),
            ["C-001", "K-042", "F-03", "API-101", "FC-07"]
        );
        assert!(names("UTF-16, C-1, AC-001, C-0001, C-001a, x-C-001, SHA-256").is_empty());
    }

    #[test]
    fn a_range_names_all_between() {
        for line in ["C-083 … C-086", "C-083–C-086", "C-083 to C-086"] {
            assert_eq!(names(line), ["C-083", "C-084", "C-085", "C-086"], "{line}");
        }
        assert_eq!(names("C-083, C-086"), ["C-083", "C-086"]);
        assert_eq!(names("C-083 … K-086"), ["C-083", "K-086"]);
    }

    #[test]
    fn only_tests_hold_statements() {
        let inline = "//! C-001\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(tested_part("core/src/options.rs", inline), Some(1));
        for content in ["//! C-001\n", "#[cfg(test)]\nmod tests;\n\n/// C-001\n"] {
            assert_eq!(tested_part("core/src/options.rs", content), None);
        }
        for file in
            ["core/tests/driver.rs", "conformance/src/cases/topics.rs", "bindings/python/tests/test_stats.py"]
        {
            assert_eq!(tested_part(file, ""), Some(0), "{file}");
        }
        for file in ["core/tests/kit/mod.rs", "protocol/vectors/generate.py"] {
            assert_eq!(tested_part(file, ""), None, "{file}");
        }
        assert_eq!(
            tested_part("conformance/src/report.rs", inline),
            None,
            "of a tool, not of what it checks"
        );
    }

    fn coverage(exceptions: &str, tests: &[&str]) -> Coverage {
        let statements = "C-001  broker  one\nC-002  broker,core  two\nFC-35  javascript  three\n";
        let place = |file: &str| Place { file: file.to_owned(), line: 1 };
        let places = [place("core/tests/a.rs"), place("reference-broker/tests/b.rs")];
        Coverage {
            statements: read_statements(statements).unwrap(),
            exceptions: read_exceptions(exceptions).unwrap(),
            tests: tests.iter().flat_map(|name| named(name)).map(|id| (id, places.to_vec())).collect(),
        }
    }

    #[test]
    fn every_statement_that_is_due_is_tested_or_excepted() {
        assert!(coverage("# Head\n\n- C-002: why\n", &["C-001"]).judge().is_ok());
        for (exceptions, tests, why) in [
            ("", &["C-001"][..], "C-002 (two): no test of broker and core names it"),
            ("- C-001: why", &["C-001", "C-002"], "C-001 is tested"),
            ("", &["C-001", "C-002", "C-003"], "core/tests/a.rs:1: C-003 is no statement"),
            ("- C-004: why", &["C-001", "C-002"], "C-004 is no statement"),
        ] {
            let error = coverage(exceptions, tests).judge().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_line_that_says_too_little_is_refused() {
        assert!(read_exceptions("- C-001\n").is_err());
        assert!(read_exceptions("- C-001: a\n- C-001: b\n").is_err());
        assert!(read_statements("C-001  moon  title\n").is_err());
        assert!(read_statements("C-001  broker\n").is_err());
    }
}
