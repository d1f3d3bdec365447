// State in the address: '#/KIND/ID?name=value', so that a view can be sent and reloaded.
function readAddress() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split('?');
  const cut = path.indexOf('/');
  const kind = cut < 0 ? path : path.slice(0, cut), id = cut < 0 ? '' : decodeURIComponent(path.slice(cut + 1));
  return { kind, id, state: Object.fromEntries(new URLSearchParams(query || '')) };
}

function addressOf(kind, id, state = {}) {
  const kept = Object.entries(state).filter(([, value]) => value !== '' && value !== null && value !== undefined);
  const query = new URLSearchParams(kept).toString();
  return `#/${kind}/${encodeURIComponent(id).replace(/%2F/g, '/')}${query ? `?${query}` : ''}`;
}

// Change some of the state without a new entry in the history, and without drawing the page anew.
function keepState(changes) {
  const { kind, id, state } = readAddress();
  const next = addressOf(kind, id, { ...state, ...changes });
  if (next !== location.hash) history.replaceState(null, '', next);
}

const currentState = () => readAddress().state;
