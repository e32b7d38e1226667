//! ZMTP 3.0 with the NULL mechanism, as far as a PUB and a ROUTER need it (`rfc.zeromq.org/spec/23`, and 37 for the commands of 3.1 that
//! a newer peer may send).
//!
//! ```text
//! greeting   64 bytes: FF 0*8 7F, version 3 0, mechanism "NULL" in 20 bytes, as-server 0, filler 0*31
//! frame      flags (1 more, 2 long, 4 command), size (1 byte, or 8 big-endian when long), body
//! command    a frame whose body begins with the length of its name and the name: READY, ERROR, PING, PONG, SUBSCRIBE, CANCEL
//! READY      properties: name (1-byte length), value (4-byte length): Socket-Type, Identity
//! ```
//!
//! A peer is not trusted: it may send small frames only, few of them in a message, and it has to greet in time.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The largest frame that a peer may send: a topic, a number, or a READY with an identity of 255 bytes.
const MAX_FRAME: usize = 4096;

/// Frames of one message that a peer may send.
const MAX_FRAMES: usize = 8;

/// A peer has to greet within this.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A peer has to take a message within this; then it is as good as gone.
const SEND_LIMIT: Duration = Duration::from_secs(60);

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What can be read from and written to.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// What a socket is to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketType {
    Pub,
    Router,
}

impl SocketType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pub => "PUB",
            Self::Router => "ROUTER",
        }
    }

    /// The types that may be at the other end.
    fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Pub => &["SUB", "XSUB"],
            Self::Router => &["REQ", "DEALER", "ROUTER"],
        }
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ZmtpError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer did not {0} in time")]
    Slow(&'static str),
    #[error("the peer does not speak ZMTP 3 with the NULL mechanism ({0})")]
    Greeting(&'static str),
    #[error("the peer is a {0:?} socket, which does not go with ours")]
    SocketType(String),
    #[error("the peer sent {0}")]
    Frame(&'static str),
    #[error("the peer gave up: {0:?}")]
    Refused(String),
}

/// What came from a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// All frames of a message.
    Message(Vec<Vec<u8>>),
    /// A wish for messages that begin with this.
    Subscribe(Vec<u8>),
    /// The end of that wish.
    Cancel(Vec<u8>),
}

/// A connection after its handshake.
pub(super) struct Connection {
    stream: Box<dyn Stream>,
    /// Bytes that are not a whole frame yet.
    input: Vec<u8>,
    /// Frames that are not a whole message yet.
    frames: Vec<Vec<u8>>,
    kind: SocketType,
}

struct Frame {
    flags: u8,
    body: Vec<u8>,
}

impl Connection {
    /// Greets and is greeted; both sides do the same.
    pub(super) async fn open(stream: Box<dyn Stream>, kind: SocketType) -> Result<Self, ZmtpError> {
        let mut connection = Self {
            stream,
            input: Vec::new(),
            frames: Vec::new(),
            kind,
        };
        timeout(HANDSHAKE_LIMIT, connection.handshake())
            .await
            .map_err(|_| ZmtpError::Slow("greet"))??;
        Ok(connection)
    }

    async fn handshake(&mut self) -> Result<(), ZmtpError> {
        self.stream.write_all(&greeting()).await?;
        let mut theirs = [0; GREETING];
        self.stream.read_exact(&mut theirs).await?;
        check_greeting(&theirs)?;
        self.stream.write_all(&ready(self.kind)).await?;
        let frame = loop {
            match self.frame()? {
                Some(frame) => break frame,
                None => self.fill().await?,
            }
        };
        let socket_type = match command(&frame) {
            Some((b"READY", properties)) => property(properties, b"Socket-Type")
                .ok_or(ZmtpError::Frame("a READY without a Socket-Type"))?,
            Some((b"ERROR", reason)) => return Err(refused(reason)),
            _ => return Err(ZmtpError::Frame("something else than READY")),
        };
        let known = self
            .kind
            .peers()
            .iter()
            .any(|peer| peer.as_bytes() == socket_type);
        known
            .then_some(())
            .ok_or_else(|| ZmtpError::SocketType(String::from_utf8_lossy(socket_type).into_owned()))
    }

    /// The next message or wish. Nothing is lost if the future is dropped; a PING is answered on the way.
    pub(super) async fn receive(&mut self) -> Result<Incoming, ZmtpError> {
        loop {
            let Some(frame) = self.frame()? else {
                self.fill().await?;
                continue;
            };
            match command(&frame) {
                None => {
                    let last = frame.flags & MORE == 0;
                    self.frames.push(frame.body);
                    if last {
                        return Ok(self.message());
                    }
                    if self.frames.len() == MAX_FRAMES {
                        return Err(ZmtpError::Frame("a message of too many frames"));
                    }
                }
                Some((b"SUBSCRIBE", topic)) => return Ok(Incoming::Subscribe(topic.to_vec())),
                Some((b"CANCEL", topic)) => return Ok(Incoming::Cancel(topic.to_vec())),
                Some((b"PING", ping)) => {
                    // Two bytes say how long the peer will wait; the rest comes back.
                    let context = ping.get(2..).unwrap_or_default();
                    let mut pong = b"\x04PONG".to_vec();
                    pong.extend_from_slice(context);
                    let mut out = Vec::new();
                    put_frame(&mut out, COMMAND, &pong);
                    self.send(&out).await?;
                }
                Some((b"ERROR", reason)) => return Err(refused(reason)),
                // Commands of later versions.
                Some(_) => {}
            }
        }
    }

    /// To a PUB of version 3.0 a wish is a message of one frame that begins with 1 or 0.
    fn message(&mut self) -> Incoming {
        let frames = std::mem::take(&mut self.frames);
        match (self.kind, frames.as_slice()) {
            (SocketType::Pub, [frame]) => match frame.split_first() {
                Some((1, topic)) => Incoming::Subscribe(topic.to_vec()),
                Some((0, topic)) => Incoming::Cancel(topic.to_vec()),
                _ => Incoming::Message(frames),
            },
            _ => Incoming::Message(frames),
        }
    }

    /// Sends bytes that [`message`] made.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> Result<(), ZmtpError> {
        timeout(SEND_LIMIT, self.stream.write_all(bytes))
            .await
            .map_err(|_| ZmtpError::Slow("take a message"))??;
        Ok(())
    }

    async fn fill(&mut self) -> Result<(), ZmtpError> {
        self.input.reserve(256);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(ZmtpError::Closed),
            _ => Ok(()),
        }
    }

    /// Takes a whole frame out of the input.
    fn frame(&mut self) -> Result<Option<Frame>, ZmtpError> {
        let Some(&flags) = self.input.first() else {
            return Ok(None);
        };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(ZmtpError::Frame("a frame with unknown flags"));
        }
        let (size, header) = if flags & LONG == 0 {
            match self.input.get(1) {
                Some(&size) => (u64::from(size), 2),
                None => return Ok(None),
            }
        } else {
            match self.input.get(1..9).and_then(|size| size.try_into().ok()) {
                Some(size) => (u64::from_be_bytes(size), 9),
                None => return Ok(None),
            }
        };
        let size = usize::try_from(size)
            .ok()
            .filter(|size| *size <= MAX_FRAME)
            .ok_or(ZmtpError::Frame("a frame that is too large"))?;
        let end = header + size;
        if self.input.len() < end {
            return Ok(None);
        }
        let body = self.input[header..end].to_vec();
        self.input.drain(..end);
        Ok(Some(Frame { flags, body }))
    }
}

/// A message of these frames.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (at, frame) in frames.iter().enumerate() {
        let more = if at + 1 < frames.len() { MORE } else { 0 };
        put_frame(&mut out, more, frame);
    }
    out
}

fn put_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(size) => out.extend_from_slice(&[flags, size]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn check_greeting(theirs: &[u8; GREETING]) -> Result<(), ZmtpError> {
    if theirs[0] != 0xFF || theirs[9] & 1 != 1 {
        return Err(ZmtpError::Greeting("no signature"));
    }
    if theirs[10] < 3 {
        return Err(ZmtpError::Greeting("an older version"));
    }
    let (name, filler) = theirs[12..32].split_at(4);
    if name != b"NULL" || filler.iter().any(|byte| *byte != 0) {
        return Err(ZmtpError::Greeting("another mechanism"));
    }
    Ok(())
}

fn ready(kind: SocketType) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    let properties: &[(&[u8], &[u8])] = match kind {
        SocketType::Pub => &[(b"Socket-Type", b"PUB")],
        SocketType::Router => &[(b"Socket-Type", b"ROUTER"), (b"Identity", b"")],
    };
    debug_assert_eq!(properties[0].1, kind.as_str().as_bytes());
    for (name, value) in properties {
        body.push(name.len() as u8);
        body.extend_from_slice(name);
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    }
    let mut out = Vec::new();
    put_frame(&mut out, COMMAND, &body);
    out
}

/// Name and rest of a command; `None` for a frame that is none.
fn command(frame: &Frame) -> Option<(&[u8], &[u8])> {
    if frame.flags & COMMAND == 0 {
        return None;
    }
    let (&size, rest) = frame.body.split_first().unwrap_or((&0, &[]));
    // A name that is cut off is none that we know.
    Some(
        rest.split_at_checked(usize::from(size))
            .unwrap_or((b"", b"")),
    )
}

/// The value of a property; names are the same in any case.
fn property<'a>(mut properties: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (&size, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(size))?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        let size = usize::try_from(u32::from_be_bytes(*size)).ok()?;
        let (value, rest) = rest.split_at_checked(size)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

fn refused(reason: &[u8]) -> ZmtpError {
    ZmtpError::Refused(String::from_utf8_lossy(reason.get(1..).unwrap_or_default()).into_owned())
}
