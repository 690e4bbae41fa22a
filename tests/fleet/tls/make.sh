#!/bin/sh
# Makes the authority that tests trust, and the certificate of their servers. Both are for 127.0.0.1 and worth
# nothing elsewhere; the authority's own key is thrown away.
set -eu
cd "$(dirname "$0")"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj "/CN=kivu tests" \
  -keyout authority.key -out authority.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=127.0.0.1" \
  -keyout server.key -out server.csr
printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n' > server.ext
openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 36500 \
  -extfile server.ext -out server.pem
rm -f authority.key authority.srl server.csr server.ext
