module sandbox

go 1.26.0
