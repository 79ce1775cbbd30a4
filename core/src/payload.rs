//! Payloads of Rust programs: any value of serde, as MessagePack.

use bytes::Bytes;
use nolag_protocol::msgpack::{Reader, Token, single};
use serde::{Serialize, de::DeserializeOwned};

use crate::error::Error;
use crate::event::Message;

/// A value as MessagePack, structs as maps. NaN and infinities are refused: not every broker can relay them (K-033).
pub(crate) fn encode<T: Serialize + ?Sized>(topic: &str, value: &T) -> Result<Bytes, Error> {
    let failed = |message: String| Error::Encode { op: "encode", topic: Some(topic.to_owned()), message };
    let bytes = rmp_serde::to_vec_named(value).map_err(|fault| failed(fault.to_string()))?;
    single(&bytes).map_err(|fault| failed(fault.to_string()))?;
    let mut reader = Reader::new(&bytes);
    while let Ok(token) = reader.token() {
        let finite = match token {
            Token::F32(n) => n.is_finite(),
            Token::F64(n) => n.is_finite(),
            _ => true,
        };
        if !finite {
            return Err(failed("a number is not finite".to_owned()));
        }
    }
    Ok(bytes.into())
}

impl Message {
    /// The payload as a value of serde.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        rmp_serde::from_slice(&self.data).map_err(|fault| Error::Encode {
            op: "decode",
            topic: Some(self.topic.to_string()),
            message: fault.to_string(),
        })
    }

    /// The payload's bytes, if it is bytes or text: some brokers deliver bytes that are UTF-8 as text (K-036).
    pub fn bytes(&self) -> Option<Bytes> {
        match Reader::new(&self.data).token() {
            Ok(Token::Bin(bytes) | Token::Str(bytes)) => Some(self.data.slice_ref(bytes)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K-036.
    #[test]
    fn bytes_come_as_bytes_or_as_text() {
        let message = |data: &'static [u8]| Message {
            delivery: 1,
            topic: "t".into(),
            data: Bytes::from_static(data),
            is_replay: false,
            ack_mode: crate::options::AckMode::Auto,
            requires_ack: false,
            frame: Bytes::new(),
        };
        assert_eq!(message(&[0xc4, 2, 0, 0xff]).bytes().as_deref(), Some(&[0, 0xff][..]));
        assert_eq!(message(&[0xa2, b'o', b'k']).bytes().as_deref(), Some(&b"ok"[..]));
        assert_eq!(message(&[0xc4, 0]).bytes().as_deref(), Some(&[][..]));
        assert_eq!(message(&[0x91, 1]).bytes(), None);
    }

    /// K-033.
    #[test]
    fn what_cannot_be_written() {
        assert!(encode("t", &vec![1.0, f64::NAN]).is_err());
        assert!(encode("t", &f32::INFINITY).is_err());
        let error = encode("t", &f64::NEG_INFINITY).unwrap_err();
        assert_eq!((error.code(), error.topic()), ("encode", Some("t")));
        assert_eq!(&encode("t", &(1, "a")).unwrap()[..], [0x92, 1, 0xa1, b'a']);
    }
}
