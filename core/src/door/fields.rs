//! Maps whose keys are names: options, as hosts write them.

use std::time::Duration;

use nolag_protocol::filter::Item as Filter;
use nolag_protocol::frame::Qos;
use nolag_protocol::msgpack::{Reader, Token};

use crate::Error;
use crate::options::Group;

/// The longest time that any option may name, ten years in ms: nobody waits longer.
const LONGEST: f64 = 315_360_000_000.0;
/// Integers above this are not told apart in a float.
const MOST: f64 = 9_007_199_254_740_992.0;

/// Reads a map, a field at a time; those that are nil count as absent, and so does a map that is nil or not there.
pub(super) fn each<'a>(
    reader: &mut Reader<'a>,
    mut read: impl FnMut(&'a str, &mut Reader<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    if reader.rest().is_empty() {
        return Ok(());
    }
    let count = match reader.token() {
        Ok(Token::Map(count)) => count,
        Ok(Token::Nil) => 0,
        _ => return Err(unfit("options", "a map")),
    };
    for _ in 0..count {
        let Ok(Token::Str(name)) = reader.token() else { return Err(unfit("options", "a map of names")) };
        let name = std::str::from_utf8(name).map_err(|_| unfit("options", "a map of names"))?;
        if reader.rest().first() == Some(&0xc0) {
            let _ = reader.token();
        } else {
            read(name, reader)?;
        }
    }
    Ok(())
}

/// An option of a wrong type or out of range.
pub(super) fn unfit(name: &str, what: &str) -> Error {
    Error::Config { code: "bad_option", message: format!("{name}: {what} is expected") }
}

/// An option that there is not.
pub(super) fn unknown(name: &str) -> Error {
    Error::Config { code: "bad_option", message: format!("there is no option {name:?}") }
}

pub(super) fn flag(name: &str, reader: &mut Reader<'_>) -> Result<bool, Error> {
    match reader.token() {
        Ok(Token::Bool(flag)) => Ok(flag),
        _ => Err(unfit(name, "true or false")),
    }
}

pub(super) fn text<'a>(name: &str, reader: &mut Reader<'a>) -> Result<&'a str, Error> {
    match reader.token() {
        Ok(Token::Str(text)) => std::str::from_utf8(text).map_err(|_| unfit(name, "text in UTF-8")),
        _ => Err(unfit(name, "text")),
    }
}

pub(super) fn owned(name: &str, reader: &mut Reader<'_>) -> Result<String, Error> {
    text(name, reader).map(str::to_owned)
}

#[allow(clippy::cast_precision_loss)] // what is too large for the cast is refused by every caller
pub(super) fn number(name: &str, reader: &mut Reader<'_>) -> Result<f64, Error> {
    match reader.token() {
        Ok(Token::Uint(number)) => Ok(number as f64),
        Ok(Token::Int(number)) => Ok(number as f64),
        Ok(Token::F32(number)) => Ok(number.into()),
        Ok(Token::F64(number)) => Ok(number),
        _ => Err(unfit(name, "a number")),
    }
}

/// A whole number from `least`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // within the bounds just checked
pub(super) fn whole(name: &str, reader: &mut Reader<'_>, least: u32) -> Result<u64, Error> {
    let given = number(name, reader)?;
    if given.fract() == 0.0 && (f64::from(least)..=MOST).contains(&given) {
        Ok(given as u64)
    } else {
        Err(unfit(name, &format!("a whole number of at least {least}")))
    }
}

/// The same, no larger than the platform's sizes.
pub(super) fn size(name: &str, reader: &mut Reader<'_>) -> Result<usize, Error> {
    Ok(usize::try_from(whole(name, reader, 1)?).unwrap_or(usize::MAX))
}

/// Milliseconds.
pub(super) fn time(name: &str, reader: &mut Reader<'_>) -> Result<Duration, Error> {
    let given = number(name, reader)?;
    if (0.0..=LONGEST).contains(&given) {
        Ok(Duration::from_secs_f64(given / 1_000.0))
    } else {
        Err(unfit(name, "a time in ms from 0 to ten years"))
    }
}

/// Milliseconds, more than none.
pub(super) fn wait(name: &str, reader: &mut Reader<'_>) -> Result<Duration, Error> {
    let given = time(name, reader)?;
    if given.is_zero() { Err(unfit(name, "a time in ms above 0")) } else { Ok(given) }
}

pub(super) fn qos(name: &str, reader: &mut Reader<'_>) -> Result<Qos, Error> {
    match whole(name, reader, 0) {
        Ok(0) => Ok(Qos::AtMostOnce),
        Ok(1) => Ok(Qos::AtLeastOnce),
        Ok(2) => Ok(Qos::ExactlyOnce),
        _ => Err(unfit(name, "0, 1 or 2")),
    }
}

/// One of these words.
pub(super) fn one_of<T: Copy>(
    name: &str,
    reader: &mut Reader<'_>,
    choices: &[(&str, T)],
) -> Result<T, Error> {
    let given = text(name, reader).ok();
    choices.iter().find(|(word, _)| Some(*word) == given).map(|(_, choice)| *choice).ok_or_else(|| {
        let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
        unfit(name, &format!("one of {}", words.join(", ")))
    })
}

/// `false` for none, `true` for the group of the actor's own name, or a name.
pub(super) fn group(name: &str, reader: &mut Reader<'_>) -> Result<Group, Error> {
    match reader.token() {
        Ok(Token::Bool(false)) => Ok(Group::Nobody),
        Ok(Token::Bool(true)) => Ok(Group::OfActor),
        Ok(Token::Str(group)) => match std::str::from_utf8(group) {
            Ok(group) => Ok(Group::Named(group.to_owned())),
            Err(_) => Err(unfit(name, "text in UTF-8")),
        },
        _ => Err(unfit(name, "true, false or text")),
    }
}

pub(super) fn list<'a, T>(
    name: &str,
    reader: &mut Reader<'a>,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let Ok(Token::Array(count)) = reader.token() else { return Err(unfit(name, "a list")) };
    (0..count).map(|_| item(reader)).collect()
}

pub(super) fn texts(name: &str, reader: &mut Reader<'_>) -> Result<Vec<String>, Error> {
    list(name, reader, |reader| owned(name, reader))
}

/// Texts are alternatives; a list of texts stands for all of them at once.
pub(super) fn filters(name: &str, reader: &mut Reader<'_>) -> Result<Vec<Filter>, Error> {
    list(name, reader, |reader| {
        let mut ahead = reader.clone();
        if let Ok(Token::Array(_)) = ahead.token() {
            texts(name, reader).map(Filter::Group)
        } else {
            owned(name, reader).map(Filter::Value)
        }
    })
}
