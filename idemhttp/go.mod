module github.com/idem-go/idem/idemhttp

go 1.26.0
