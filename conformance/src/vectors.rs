//! The test vectors of the repository, embedded, and their tagged JSON (wire protocol 31).

use anyhow::{Context, Result, bail};
use rmpv::Value;
use serde_json::Value as Json;

const FRAMES: &str = include_str!("../../protocol/vectors/frames.json");
const TOPICS: &str = include_str!("../../protocol/vectors/topics.json");
const FILTERS: &str = include_str!("../../protocol/vectors/filters.json");

/// All of `frames.json` of direction `client`.
pub(crate) fn client_frames() -> Result<Vec<Json>> {
    Ok(read(FRAMES)?.into_iter().filter(|vector| vector["direction"] == "client").collect())
}

/// The cases of `topics.json` of one kind.
pub(crate) fn topics(kind: &str) -> Result<Vec<Json>> {
    Ok(read(TOPICS)?.into_iter().filter(|case| case["kind"] == kind).collect())
}

/// The cases of `filters.json` of one kind.
pub(crate) fn filters(kind: &str) -> Result<Vec<Json>> {
    Ok(read(FILTERS)?.into_iter().filter(|case| case["kind"] == kind).collect())
}

fn read(text: &str) -> Result<Vec<Json>> {
    serde_json::from_str(text).context("a vector file that is not an array")
}

/// The bytes of a frame vector.
pub(crate) fn bytes(vector: &Json) -> Result<Vec<u8>> {
    unhex(vector["msgpack_hex"].as_str().context("a vector without msgpack_hex")?)
}

fn unhex(hex: &str) -> Result<Vec<u8>> {
    (0..hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&hex[at..at + 2], 16)?)).collect()
}

/// Tagged JSON as a value: see the head of `generate.py`.
pub(crate) fn value(json: &Json) -> Result<Value> {
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(bool) => Value::from(*bool),
        Json::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(number), ..) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (_, _, Some(number)) => Value::from(number),
            _ => bail!("a number that fits nothing: {number}"),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(value).collect::<Result<_>>()?),
        Json::Object(fields) => match fields.iter().next() {
            Some((tag, inner)) if fields.len() == 1 && tag.starts_with('$') => tagged(tag, inner)?,
            _ => Value::Map(
                fields
                    .iter()
                    .map(|(key, item)| Ok((Value::from(key.as_str()), value(item)?)))
                    .collect::<Result<_>>()?,
            ),
        },
    })
}

fn tagged(tag: &str, inner: &Json) -> Result<Value> {
    let text = |json: &Json| json.as_str().map(str::to_owned).context("a tag without its text");
    let count = |json: &Json| {
        json.as_u64().and_then(|count| usize::try_from(count).ok()).context("a tag without its count")
    };
    Ok(match tag {
        "$bin" => Value::from(unhex(&text(inner)?)?),
        "$ext" => Value::Ext(
            i8::try_from(inner[0].as_i64().context("an ext without a type")?)?,
            unhex(&text(&inner[1])?)?,
        ),
        "$int" => {
            let digits = text(inner)?;
            match digits.parse::<u64>() {
                Ok(number) => Value::from(number),
                Err(_) => Value::from(digits.parse::<i64>()?),
            }
        }
        "$f64" => Value::from(text(inner)?.parse::<f64>()?),
        "$map" => Value::Map(
            inner
                .as_array()
                .context("a $map that is no array")?
                .iter()
                .map(|pair| Ok((value(&pair[0])?, value(&pair[1])?)))
                .collect::<Result<_>>()?,
        ),
        "$rep" => Value::from(text(&inner[0])?.repeat(count(&inner[1])?)),
        "$binrep" => Value::from(unhex(&text(&inner[0])?)?.repeat(count(&inner[1])?)),
        _ => bail!("an unknown tag {tag}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{encode, get};

    /// Every canonical vector is what our own encoder makes of its tagged JSON, whatever the order of the keys.
    #[test]
    fn tagged_json_is_read_as_the_generator_wrote_it() {
        for vector in client_frames().expect("the vectors") {
            if vector["frame"].is_null() || vector["decode_only"] == true {
                continue;
            }
            let bytes = bytes(&vector).expect("hex");
            let decoded = crate::wire::decode(&bytes).expect("MessagePack");
            let frame = value(&vector["frame"]).expect("tagged JSON");
            let name = &vector["name"];
            assert_eq!(encode(&decoded), bytes, "{name}");
            if let Some(data) = get(&frame, "data").filter(|data| !data.is_map()) {
                assert_eq!(get(&decoded, "data"), Some(data), "{name}");
            }
        }
    }
}
